"""A detached job's own process: one shard, from its lease to its last outcome."""
