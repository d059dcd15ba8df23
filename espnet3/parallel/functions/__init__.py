"""A function in the place of a runner and a provider: for people who have a function and items.

In: a function, items, and what the function needs besides. Out: what a runner with that `forward` returns, with all
that runners have: progress, recorded failures, a run folder, detached jobs.
"""
