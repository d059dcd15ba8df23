"""The `parallel_*` functions: a function over items, in order or as they are done, or one call of it.

In: a function, its arguments, the open client or None. Out: results, a generator of them, or a future.
"""
