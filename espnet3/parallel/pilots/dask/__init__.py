"""Pilots on the workers of a Dask client.

In: a client. Out: the slots of its workers (`ClientSlots`).

`pools` has a process beside each worker open them, and one pool for each client; `tasks` carries the same chunks where
workers cannot connect to the driver.
"""
