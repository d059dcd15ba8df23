"""What the `parallel_*` functions do with a function: over items, in order or as they are done, or once.

In: a function, what it is called with, the client that is open or none. Out: results, a generator of them, or a future.
"""
