"""The stages that every system shares."""
