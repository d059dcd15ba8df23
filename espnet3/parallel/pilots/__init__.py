"""Runs pulled by workers: the driver's side and the worker's side of one channel.

In: a pool of worker slots, a `Work`, a `Job`. Out: pairs of a chunk and its `Block`, as they come in.

Both sides: `channel`, `protocol`, `mark`. The worker: `worker`. The driver: `driver` (the loop), `pool`, `slot`,
`feeding`, `losses`. Where workers cannot connect to the driver, `dask_tasks` carries the same chunks.
"""
