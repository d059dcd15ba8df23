"""A run seen from outside, by any process that sees its folder: status, wait, cancel, retry, merge.

In: a run folder. Out: a `RunStatus` (of a run without jobs, a `FolderStatus`), or a changed run.
"""
