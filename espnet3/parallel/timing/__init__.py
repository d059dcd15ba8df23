"""Times of items, and of each worker's work on them: `times.jsonl` beside the outcomes of a session or a job."""
