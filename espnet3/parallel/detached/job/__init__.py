"""A detached job's own process: one shard, from its lease to its last outcome.

In: a spec file. Out: lines in the run folder, and `done` or `ended` beside them.
"""
