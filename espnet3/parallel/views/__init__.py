"""A run read from its folder alone: for a terminal, a page, and a person's next step.

In: a run folder, of a run that is at work, dead or finished. Out: facts in plain records, an HTML page of them, an
item run once more in this process, and the size of a job that is still to come. Nothing here changes a run's folder.

`facts.py` reads events, leases and the lines of items, and puts them together for a report, `live.py` for a terminal;
`charts.py` and `page.py` make pictures, sentences and HTML of it. `replaying.py` runs an item again, `sizing.py` does
the sums for a bigger run.
"""
