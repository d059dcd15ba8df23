"""Detached runs: one job for each shard, no driver and no open connection while they run.

    submit ──> specs (JSON) ──> jobs ──> worker: lease, items, outcomes on disk ──> status, wait, merge
                                 │
                local: a supervisor of its own session · scheduler: one job array

`code.py` names classes so that another process finds them, `surroundings.py` records what that process
needs around it, `spec.py` is what a job reads, `layout.py` where things are in the run folder, `states.py`
what a shard's files say of it; `submit.py` and `run.py` are the two ends a caller sees.
"""
