"""How a run reaches its processes: in this one, over Dask workers, or (later) as detached jobs."""
