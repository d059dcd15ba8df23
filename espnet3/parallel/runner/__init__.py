"""From a call to a launcher: the items of a runner, or of `parallel_map`, become chunks of work somewhere.

In: a task, items, and the registered configuration. Out: results in the caller's order, or files in a run folder.
"""
