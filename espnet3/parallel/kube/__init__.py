"""Requests to Kubernetes and its answers, for runs with a driver and for detached ones."""
