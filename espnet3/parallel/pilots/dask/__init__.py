"""Pilots on the workers of a Dask client.

In: a client. Out: the slots of its workers (`ClientSlots`).

`pools` opens them on each worker and has one pool for each client, and `tasks` carries the same chunks where
workers cannot connect to the driver.
"""
