"""Everything outside this process tree: clusters of batch jobs, SSH sessions, GPUs and pods, and the Dask client.

In: a checked `ParallelConfig`. Out: an open `EnvClient` that owns its cluster (`client.open_client`).
"""
