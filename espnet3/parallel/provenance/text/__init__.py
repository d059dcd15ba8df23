"""A file of the user's as text: its statements, what each binds, uses and imports, and their hashes.

In: a file. Out: statements, without comments, docstrings and layout, and nothing of what has been loaded.
"""
