"""Times of items, and of each worker's work on them: `times.jsonl` beside the outcomes of a session or a job.

`flames.py` stands by itself: it draws where the time of one item goes.
"""
