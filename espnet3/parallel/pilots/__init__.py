"""Chunks pulled by workers: the driver's side and the worker's side of one channel.

In: slots (`RunSlots`), a `Work`, a `RunSpec`. Out: pairs of a chunk and its `Block`, as they come in.

Both sides: `channel`, `protocol`, `log_records`. The worker: `worker`. The driver: `driver` (the loop), `pool`,
`losses`; `worker_cluster` is what the driver asks of a cluster. In `dask/` is how the workers of a Dask client get
their slots.
"""
