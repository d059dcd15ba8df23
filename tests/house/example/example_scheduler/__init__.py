"""What the Example scheduler has beside its record: the class of its jobs, and its commands."""
