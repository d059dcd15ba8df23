"""Detached runs: one job for each shard, no driver and no open connection while they run.

    submission ──> specs (JSON) ──> launch ──> job: lease, items, outcomes on disk ──> looking: status, wait, merge
                                       │
                 local: a supervisor of its own session · scheduler: one job array

Read by submitter, job and onlooker alike: where things are in the run folder (`layout`), what a job is told
(`job_spec`), what a shard's files say (`states`).
"""
