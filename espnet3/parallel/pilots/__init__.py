"""Chunks pulled by workers: the driver's side and the worker's side of one channel.

Both sides: `channel`, `protocol`, `log_records`. The worker: `worker`. The driver: `driver` (the loop), `pool`,
`losses`; `worker_cluster` is what the driver asks of a cluster. In `dask/` is how the workers of a Dask client get
their slots.
"""
