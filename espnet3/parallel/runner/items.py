"""The drivers of runs whose results are what `forward` returned: a list here, or lines in a run folder."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from espnet3.parallel.engine.exceptions import item_error
from espnet3.parallel.engine.work import Work
from espnet3.parallel.records import RunSummary, Tally
from espnet3.parallel.timing.recorder import TimesRecorder

if TYPE_CHECKING:
    from espnet3.parallel.ledger.results import Results
    from espnet3.parallel.ledger.session import OpenRun

_AT_RISK = 0.005  # of a run's items may be in flight at once: a killed driver costs them

# Takes the work; gives an iterator of chunks with their outcomes, and a tally of the workers' time and deaths
Launch = Callable[[Work], AbstractContextManager[tuple[Any, Tally]]]
# Called with new outcomes and the positions of the failures among them; may raise to stop the run
Report = Callable[[Sequence[Any], Sequence[int]], None]


def run_to_list(
    items: Sequence[Any], cost: Sequence[float] | None, align: int, launch: Launch, report: Report
) -> tuple[list[Any], RunSummary]:
    """Run all items and keep their results in memory."""
    results: list[Any] = [None] * len(items)
    work = Work(items, cost, align)
    order = work.order
    begin, retries, failed = time.perf_counter(), 0, 0
    with launch(work) as (pairs, tally):
        for chunk, block in pairs:
            n = len(block.values)
            if order is None:
                results[chunk.start : chunk.start + n] = block.values
            else:
                for place, value in zip(order[chunk.start : chunk.start + n], block.values, strict=True):
                    results[place] = value
            retries += block.retries
            failed += len(block.failed)
            report(block.values, block.failed)
            if block.error is not None:
                raise item_error(block.take_error(), block.stop)
    return results, tally.summary(len(items), failed, retries, begin)


def run_to_folder(
    folder: OpenRun,
    items: Sequence[Any],
    cost: Sequence[float] | None,
    align: int,
    launch: Launch,
    report: Report,
    retry_failed: bool,
) -> tuple[Results, RunSummary]:
    """Run the items that have no outcome in a run folder yet; each is on disk before it is reported.

    At the end the outcomes of all sessions are merged.
    """
    left = folder.left(retry_failed)
    begin, retries, failed = time.perf_counter(), 0, 0
    tally = Tally()
    if len(left):
        work = _work_left(items, cost, align, left)
        recorder = TimesRecorder(folder.append_times, items, cost)
        with launch(work) as (pairs, tally), recorder as times:
            for chunk, block in pairs:
                times.workers(tally)
                values, bad, positions = block.values, block.failed, work.positions(chunk)
                if bad:
                    folder.append([value for value in values if type(value) is bytes])
                else:
                    folder.append(values, positions)
                if bad or block.stop is not None:
                    lost = [(positions[k], values[k]) for k in bad]
                    if block.stop is not None:
                        lost.append((positions[len(values)], block.stop))
                    folder.append_failures(lost)
                if block.times is not None and values:
                    times.took(
                        block.worker,
                        block.seconds,
                        len(values),
                        block.times,
                        positions,
                        retries=block.retries,
                    )
                retries += block.retries
                failed += len(bad)
                report(values, bad)
                if block.error is not None:
                    raise item_error(block.take_error(), block.stop)
            times.workers(tally)
    summary = tally.summary(len(left), failed, retries, begin, kept=len(items) - len(left))
    summary = replace(summary, kept_failed=0 if retry_failed else folder.failed)
    folder.event("computed", **asdict(summary))
    folder.merge()
    return folder.results(), summary


def _work_left(items: Sequence[Any], cost: Sequence[float] | None, align: int, left: Sequence[int]) -> Work:
    if isinstance(left, range):  # all of them
        return Work(items, cost, align, at_risk=_AT_RISK)
    of_left = array("d", (cost[p] for p in left)) if cost is not None else None
    return Work([items[p] for p in left], of_left, align, left, _AT_RISK)
