"""The same processes as workers of a Dask cluster, for `get_client` and for options that only Dask knows."""
