"""A run read from its folder alone, which nothing here changes: for a terminal, a page, and a person's next step.

`facts.py` reads events, leases and the lines of items, and puts them together for a report, `live.py` for a terminal;
`charts.py` and `page.py` make pictures, sentences and HTML of it. `replaying.py` runs an item again, `sizing.py` does
the sums for a bigger run.
"""
