"""Jobs of batch schedulers, with a driver and in detached runs: their scripts, and a scheduler's commands."""
