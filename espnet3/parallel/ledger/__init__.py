"""The run folder on disk: every outcome is in it before it is reported, and nothing is in it twice.

`lines.py` holds the format of an outcome, `identity.py` the sameness of two runs; `folder.py` opens a folder and serves
the driver in it; `split.py` writes a session's own files and reads those of all sessions, `merge.py` puts them in
order, proves them, and reads the merged ones lazily; `lease.py` keeps a second driver out. Nothing here knows how the
items are run.
"""
