"""A detached run seen from outside, by any process that sees its folder: status, wait, cancel, retry, merge.

In: a run folder. Out: a `RunStatus`, or a changed run.
"""
