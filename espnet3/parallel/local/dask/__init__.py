"""The same processes as workers of a Dask cluster, for `get_client` and for options that only Dask knows.

In: a number and `LocalCluster`'s options. Out: a real `LocalCluster` whose workers stand under our supervisor.
"""
