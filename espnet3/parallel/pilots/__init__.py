"""Chunks pulled by workers: the driver's side and the worker's side of one channel.

In: a client's slots (`ClientSlots`), a `Work`, a `RunSpec`, a `WorkerCluster`. Out: pairs of a chunk and its `Block`,
as they come in.

Both sides: `channel`, `protocol`, `mark`, `log_records`. The worker: `worker`. The driver: `driver` (the loop), `slot`,
`pool`, `door`, `pools`, `feeding`, `losses`, `abandon`; `worker_cluster` is what the driver asks of a cluster. Where
workers cannot connect to the driver, `dask_tasks` carries the same chunks.
"""
