"""Times of items, and of each worker's work on them: `times.jsonl` beside the outcomes of a session or a job.

In: the steps of items as `engine` timed them, with the worker that took them. Out: a few lines per worker and minute,
however many items there are, and the same facts read back for a report. `flames.py` stands by itself: it draws where
the time of one item goes.
"""
