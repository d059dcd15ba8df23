"""A function in the place of a runner and a provider.

In: a function, items, and the function's other arguments. Out: the result of a runner with that `forward`, with
progress, recorded failures, a run folder and detached jobs.
"""
