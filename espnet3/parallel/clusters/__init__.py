"""Everything outside this process tree: clusters of batch jobs, SSH sessions, GPUs and pods, and the Dask client."""
