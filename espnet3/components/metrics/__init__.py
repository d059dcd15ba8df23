"""Metrics of the measure stage."""
