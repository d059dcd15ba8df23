"""From a runner and its indices to jobs that need no driver.

In: a runner and its indices. Out: a run folder with a plan and specs, jobs handed to the backend, a `DetachedRun`.
"""
