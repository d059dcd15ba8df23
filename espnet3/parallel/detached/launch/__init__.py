"""How a backend starts, queries and cancels detached jobs: a supervisor here, one on each SSH host, or a job array.

In: a plan and the shards to run. Out: job ids in the run folder, and what the backend knows of them.
"""
