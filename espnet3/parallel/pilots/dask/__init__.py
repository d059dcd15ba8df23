"""Pilots on the workers of a Dask client.

`pools` has a process beside each worker open them, and one pool for each client; `tasks` carries the same chunks where
workers cannot connect to the driver.
"""
