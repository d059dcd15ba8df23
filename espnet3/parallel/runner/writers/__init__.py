"""Runners that write files of their own: their hooks, what each is called with, and what stands beside the files."""
