"""From a call to a launcher: what a runner or `parallel_map` was asked becomes chunks of work somewhere.

In: a task, items, and the registered configuration. Out: results in the caller's order, or files in a run folder.
"""
