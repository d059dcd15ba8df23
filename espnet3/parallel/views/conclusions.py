"""What somebody would conclude from a run's facts, in three sentences; each says what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from statistics import median

from espnet3.parallel.messages import counted
from espnet3.parallel.views.charts import duration
from espnet3.parallel.views.facts import RunFacts
from espnet3.parallel.views.sessions import Session

_MOST = 3
_START = 0.1  # share of a session that start-up may take before that is said
_IDLE = 0.15  # share of the workers' time that may be idle before that is said
_WAITING = 0.5  # share of the items' time without the processor above which that is said
_LONG = 60.0  # seconds of work from which on more workers would be felt
_FEW, _HEAVY = 0.05, 0.2  # share of the items that takes such a share of the time is named
_ENV = 0.15  # share of the workers' time that envs may take before that is said
_STRAGGLER = 2.0  # times as long as the middle one


def conclusions(facts: RunFacts) -> list[str]:
    """Return at most three sentences: how the run is, and what would change it most."""
    weighed = sorted(_candidates(facts), key=lambda pair: -pair[0])
    return [_state(facts), *(sentence for _, sentence in weighed)][:_MOST]


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


def _candidates(facts: RunFacts) -> Iterator[tuple[float, str]]:
    """Yield sentences, each with how much it matters: about the share of items or of time that it is about."""
    if facts.failures:
        first = facts.failures[0]
        replay = shlex.join(["espnet3", "replay", facts.run, first.indices[0]])
        share = first.count / max(1, facts.failed)
        yield (
            0.5 + 0.5 * first.count / max(1, facts.items),
            (
                f"{first.count:,} of {counted(facts.failed, 'failure')} ({share:.0%}) are {first.error_type}: "
                f"{' '.join(first.message.split()):.120}. `{replay}` runs the first one here."
            ),
        )
    if facts.deaths:
        yield (
            0.6,
            f"{counted(facts.deaths, 'worker process')} ended in the middle of items, which were run again.",
        )
    if facts.computed:
        yield from _of_session(facts.computed[-1], bool(facts.times.costs))
    yield from _of_times(facts)
    yield from _of_shards(facts)
    yield from _of_jobs(facts)
    if facts.state == "at work" and facts.stretches and facts.left:
        begin, end = min(one.begin for one in facts.stretches), max(one.end for one in facts.stretches)
        rate = sum(one.items for one in facts.stretches) / max(1e-9, end - begin)
        yield (
            0.4,
            (
                f"{rate:,.3g} items came in a second on average, since the first session began: at that rate the "
                f"{facts.left:,} that are left take another {duration(facts.left / rate)}."
            ),
        )
    if (
        not facts.deaths
        and not facts.retries
        and facts.computed
        and all(one.figures for one in facts.sessions)
    ):
        yield 0.001, "Nothing had to be done twice: no worker process was lost, and no item was tried again."
    if facts.retries:
        done = max(1, facts.ok + facts.failed)
        yield (
            facts.retries / done,
            f"{counted(facts.retries, 'time')} an item was tried again because it had raised.",
        )


def _of_session(session: Session, has_cost: bool) -> Iterator[tuple[float, str]]:
    seconds, start = session.figure("seconds"), session.figure("start_seconds")
    items, slots = int(session.figure("items")), int(session.figure("slots"))
    busy, present = session.figure("busy_seconds"), session.figure("slot_seconds")
    share = start / seconds if seconds else 0.0
    if share >= _START:
        env = session.figure("env_seconds")
        part = f", {duration(env)} of it to build the env" if env >= start / 10 else ""
        yield (
            share,
            (
                f"Start-up took {share:.0%} of the last session ({duration(start)} of {duration(seconds)}{part}): more "
                "items in one call, or one call where there are several, would make it count less."
            ),
        )
    idle = 1 - busy / present if present else 0.0
    if idle >= _IDLE and slots > 1 and seconds - start > 1:
        cost = "its item_cost did not foresee that" if has_cost else "an item_cost starts long items first"
        yield (
            idle,
            (
                f"The workers were idle for {idle:.0%} of the time they were there: the last items were long, or the "
                f"driver was the limit; {cost}."
            ),
        )
    waiting = 1 - session.figure("cpu_seconds") / busy if busy and session.figure("cpu_seconds") else 0.0
    if waiting >= _WAITING and busy > 1:
        yield (
            0.2,
            (
                f"Items spent {waiting:.0%} of their {duration(busy / items)} on average without the processor: "
                "waiting for files, a GPU, a lock, the network or other programs."
            ),
        )
    if items:
        yield 0.01, f"An item took {duration(busy / items)} on average, over {counted(items, 'item')}."
    work = seconds - start
    if idle < _IDLE and work >= _LONG:
        more = max(1, slots)
        saved = work - busy / (slots + more)
        yield (
            0.3,
            (
                f"The workers were busy for {1 - idle:.0%} of the time: {counted(more, 'more worker')} would have "
                f"saved about {duration(saved)} of {duration(work)}, where there are processors for them."
            ),
        )


def _of_times(facts: RunFacts) -> Iterator[tuple[float, str]]:
    times = facts.times
    total = times.busy
    if total < 1:
        return
    seconds = 0.0
    for n, (took, _, name) in enumerate(times.slow, 1):
        seconds += took
        if n > _FEW * times.items:
            break
        if seconds >= _HEAVY * total:
            who = f"Item {name} alone" if n == 1 else f"{n} items (the slowest is {name})"
            yield (
                seconds / total,
                (
                    f"{who} took {seconds / total:.0%} of the time of all {times.items:,}: {duration(seconds)} of "
                    f"{duration(total)}. An item_cost starts such items first; cut into parts they would share it."
                ),
            )
            break
    env = sum(one.env + one.imports for one in times.arrivals)
    if env and (share := env / (env + total)) >= _ENV:
        yield (
            share,
            (
                f"Imports and env took {share:.0%} of the workers' time ({duration(env / len(times.arrivals))} each): "
                "give each worker more items, by fewer workers or more items in a call."
            ),
        )


def _of_jobs(facts: RunFacts) -> Iterator[tuple[float, str]]:
    """Say how much of the time detached jobs were at work, compared with as many of them as there ever were at once."""
    spans = [span for span in facts.shards if span.seconds]
    if len(spans) < 2:
        return
    wall = max(span.end for span in spans) - min(span.begin for span in spans)
    moments = sorted([(span.begin, 1) for span in spans] + [(span.end, -1) for span in spans])
    at_once = most = 0
    for _, change in moments:
        at_once += change
        most = max(most, at_once)
    idle = 1 - sum(span.seconds for span in spans) / (wall * most) if wall else 0.0
    if idle >= _IDLE:
        yield (
            idle,
            (
                f"Up to {counted(most, 'job')} ran at once, and {idle:.0%} of their {duration(wall)} was spent between "
                "jobs: in the queue, and starting Python. Fewer, longer shards (`detached.shards`) make that less."
            ),
        )
    items = sum(span.items for span in spans)
    if items:
        seconds = sum(span.seconds for span in spans)
        yield (
            0.01,
            f"The jobs took {duration(seconds / items)} for an item on average, over {counted(items, 'item')}.",
        )


def _of_shards(facts: RunFacts) -> Iterator[tuple[float, str]]:
    shards = facts.shard_seconds()
    if len(shards) < 3:
        return
    middle, (longest, name, n) = median(seconds for seconds, _, _ in shards), shards[0]
    if longest > _STRAGGLER * middle > 0:
        total = sum(seconds for seconds, _, _ in shards)
        yield (
            min(0.9, longest / total + 0.3),
            (
                f"{name.capitalize()} ({counted(n, 'item')}) took {duration(longest)}, {longest / middle:.1f} times as "
                f"long as the middle one, and {longest / total:.0%} of all: more shards would even that out."
            ),
        )
