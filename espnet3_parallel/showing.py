"""The status of a run as text for people, and a live line while it goes on."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from espnet3.parallel.detached.looking.status import FolderStatus
from espnet3.parallel.detached.states import JobState, RunStatus
from espnet3.parallel.views.charts import duration
from espnet3.parallel.views.live import LiveFacts, Rate
from espnet3.parallel.views.outcomes import FailureGroup
from espnet3_parallel.output import say, wrapped

_REASONS = 3  # for waiting or unstarted jobs: the most frequent ones are shown
_SHOWN = 10  # shards that need attention and are listed one by one
_FINE = (JobState.DONE, JobState.PENDING, JobState.RUNNING, JobState.NEW, JobState.NOT_STARTED)


def print_status(found: RunStatus | FolderStatus, as_json: bool = False) -> None:
    """Print a status, wrapped at 80 columns, or as JSON."""
    say(json.dumps(found.to_json(), indent=2) if as_json else status_text(found))


def status_text(found: RunStatus | FolderStatus) -> str:
    """Return a status as text of 80 columns."""
    if isinstance(found, RunStatus):
        lines = _of_jobs(found)
    else:
        if found.alive:
            end = f"a driver is at work: {found.driver}"
        elif found.merged:
            end = "complete, and merged"
        else:
            left = found.items - found.ok - found.failed
            rest = f"computes the {left:,} that are left" if left else "merges it"
            end = f"no driver is at work: the same call of the runner {rest}"
        lines = [wrapped(f"{found.run}: {counts_of(found)}"), wrapped(end)]
    return "\n".join([*lines, *(wrapped(f"note: {note}") for note in found.notes)])


def _of_jobs(found: RunStatus) -> list[str]:
    lines = [wrapped(f"{found.run} ({found.env}): {counts_of(found)}")]
    for state, count in sorted(found.counts.items(), key=lambda pair: list(JobState).index(pair[0])):
        lines.append(wrapped(f"{count:6d} {_word(state):14} {state.sentence}", 22))
        if state in (JobState.PENDING, JobState.NOT_STARTED):
            reasons = Counter(shard.note for shard in found.shards if shard.state is state and shard.note)
            lines += [
                wrapped(f"{number:6d} of them: {note}", 7) for note, number in reasons.most_common(_REASONS)
            ]
    ended = [shard for shard in found.shards if shard.state not in _FINE]
    for shard in ended[:_SHOWN]:
        text = f"shard {shard.shard} ({shard.job_id or 'no job'}) {_word(shard.state)}: {shard.note}"
        lines.append(wrapped(text.rstrip(": ")))
    if len(ended) > _SHOWN:
        lines.append(f"... and {len(ended) - _SHOWN:,} more; --json lists all")
    return lines


def _word(state: JobState) -> str:
    return state.value.replace("_", " ")


def counts_of(found: RunStatus | FolderStatus) -> str:
    """Return how far a run is."""
    return f"{found.ok + found.failed:,} of {found.items:,} items, {found.failed:,} failed"


def live_line() -> Callable[[RunStatus | FolderStatus], None]:
    """Return a printer of lines on stderr about a run that goes on: every ten seconds, after a minute every minute."""
    begin, due, rate = time.monotonic(), 0.0, Rate()

    def show(found: RunStatus | FolderStatus) -> None:
        nonlocal due
        now, done = time.monotonic(), found.ok + found.failed
        speed = rate(now, done)
        if now >= due:
            text = f"{counts_of(found)}{pace(speed, (found.items - done) / speed if speed else None)}"
            if isinstance(found, RunStatus):
                jobs = ", ".join(f"{n} {_word(state)}" for state, n in found.counts.items() if state.alive)
                text += f"; jobs: {jobs}"
            say(text, sys.stderr, flush=True)
            due = now + (10.0 if now - begin < 60.0 else 60.0)

    return show


def plain_line(facts: LiveFacts) -> str:
    """Return one line about a run, for `watch` without a terminal."""
    status = facts.status
    end = "" if status.alive else f", {state_of(facts)}"
    causes = "".join(f"; {cause_of(group):.100}" for group in facts.failures[:1])
    return f"{Path(status.run).name}: {counts_of(status)}{pace(facts.rate, facts.seconds_left)}{end}{causes}"


def cause_of(group: FailureGroup) -> str:
    """Return a kind of failure in one line."""
    return f"{group.count:,} x {group.error_type}: {' '.join(group.message.split())}"


def state_of(facts: LiveFacts) -> str:
    """Return in a few words how a run is."""
    if facts.status.alive:
        return "at work"
    return "complete" if facts.status.done or facts.status.merged else "no process works on it"


def pace(rate: float, left: float | None) -> str:
    """Return the rate and the seconds that are left, where they are known, behind a comma."""
    return f"{f', {rate:,.1f} items/s' if rate else ''}{'' if left is None else f', {duration(left)} left'}"
