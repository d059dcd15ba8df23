"""Three sentences on a run: its state, its trouble, and where its time went."""

from __future__ import annotations

import shlex

from espnet3.parallel.messages import counted
from espnet3.parallel.views.charts import duration
from espnet3.parallel.views.facts import RunFacts


def conclusions(facts: RunFacts) -> list[str]:
    """Return at most three sentences."""
    return [sentence for sentence in (_state(facts), _trouble(facts), _time(facts)) if sentence]


def _state(facts: RunFacts) -> str:
    failed = f", {facts.failed:,} of them a failure" if facts.failed else ""
    if facts.state == "complete":
        how = ""
        if facts.computed:
            last = facts.computed[-1]
            how = (
                f" The last session ran {counted(int(last.figure('items')), 'item')} in "
                f"{duration(last.figure('seconds'))} on {counted(int(last.figure('workers')), 'worker')}."
            )
        return f"All {counted(facts.items, 'item')} have an outcome{failed}.{how}"
    about = "" if facts.exact else "About "
    have = f"{about}{facts.ok + facts.failed:,} of {counted(facts.items, 'item')} have an outcome{failed}"
    if facts.state == "at work":
        return f"{have}; the run is at work."
    ended = facts.sessions[-1] if facts.sessions else None
    why = f" It stopped at {ended.error.splitlines()[0]:.120}." if ended is not None and ended.error else ""
    again = f"`espnet3 retry {facts.run}`" if facts.shards else "the same call of the runner"
    left = f"the {facts.left:,} that are left" if facts.exact else "what is left, and to count"
    return f"{have}, and nobody works on it.{why} To compute {left}: {again}."


def _trouble(facts: RunFacts) -> str:
    if facts.failures:
        first = facts.failures[0]
        replay = shlex.join(["espnet3", "replay", facts.run, first.indices[0]])
        share = first.count / max(1, facts.failed)
        return (
            f"{first.count:,} of {counted(facts.failed, 'failure')} ({share:.0%}) are {first.error_type}: "
            f"{' '.join(first.message.split()):.120}. `{replay}` runs the first one here."
        )
    if facts.deaths:
        return (
            f"{counted(facts.deaths, 'worker process')} ended in the middle of items, which were run again."
        )
    if facts.retries:
        return f"{counted(facts.retries, 'time')} an item was tried again because it had raised."
    if facts.computed and all(one.figures for one in facts.sessions):
        return "Nothing had to be done twice: no worker process was lost, and no item was tried again."
    return ""


def _time(facts: RunFacts) -> str:
    if facts.computed:
        last = facts.computed[-1]
        seconds, start = last.figure("seconds"), last.figure("start_seconds")
        busy, present, items = last.figure("busy_seconds"), last.figure("slot_seconds"), last.figure("items")
        return (
            f"Start-up took {start / max(1e-9, seconds):.0%} of the last session ({duration(start)} of "
            f"{duration(seconds)}); workers were busy for {busy / max(1e-9, present):.0%} of the time they were there, "
            f"and an item took {duration(busy / items)} on average."
        )
    times = facts.times
    if not times.busy:
        return ""
    start = sum(one.imports + one.env for one in times.arrivals)
    return (
        f"An item took {duration(times.busy / times.items)} on average, over {counted(times.items, 'item')}; "
        f"imports and env took {start / (start + times.busy):.0%} of the workers' time."
    )
