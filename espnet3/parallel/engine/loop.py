"""THE loop: every item of every run, wherever it runs, is called from `run_items`.

    items ──> [ step of items ] ──> call ──> values ──┐
                  ^        an exception: retry, then  │
                  │        an ItemFailure, or stop    │
                  └── clock: longer or shorter steps  │
                                                      v
    time budget spent, or asked to stop ─────────>  Block (values so far; the tail is the caller's)

Before each step the worker's mark is set to the items in it: if the worker dies, it was one of these.
The clock is read between steps, not between items, and steps grow until one takes about a twelfth of
the time budget: the code between two steps is no longer in the processor's caches after a few
milliseconds of user code, and costs 20 to 40 µs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING, spoilt_cuda
from espnet3.parallel.engine.inside import THREAD
from espnet3.parallel.engine.seeding import seeded, turn
from espnet3.parallel.engine.settling import (
    Attempt,
    Block,
    Call,
    Fit,
    Step,
    in_halves,
    is_the_runners,
    is_too_large,
    one_by_one,
    stepper,
)
from espnet3.parallel.engine.watch import Feed, KeepingFeed, Report, Watch, late_in
from espnet3.parallel.errors import add_note
from espnet3.parallel.records import Policy

_QUICK, _SLOW = 1 / 16, 1 / 4  # of the time budget: a step that takes less grows, one that takes more shrinks
# of a chunk's items: a first step holds no more of them, however many the last chunk's steps held
_FIRST = 1 / 8
_ASK_EVERY = 0.05  # seconds between calls of `interrupted`: each is a system call, out of the caches


class _Inside(threading.local):
    report: Report | None = None  # as for `on_a_worker`
    leave: Report | None = None
    values: list[Any] | None = None  # results so far of the outermost `run_items`
    loop: _Loop | None = None  # the innermost `run_items`


_INSIDE = _Inside()


def items_in_hand() -> Sequence[Any]:
    """Return the item or batch that this thread is inside; where runs are nested, the inner one's."""
    loop = _INSIDE.loop
    if loop is None:
        return ()
    at = len(loop.block.values)
    return loop.items[at : at + (loop.unit if loop.policy.seed is None else 1)]


@contextmanager
def on_a_worker(report: Report | None = None, replaced: bool = False) -> Iterator[None]:
    """Mark this thread as one that runs items for a driver.

    `report` ends this process with the items in progress, which took too long; where another one takes its place,
    also with those whose exception makes CUDA unusable in it.
    """
    before = _INSIDE.report, _INSIDE.leave
    THREAD.depth += 1
    _INSIDE.report, _INSIDE.leave = report, report if replaced else None
    try:
        yield
    finally:
        THREAD.depth -= 1
        _INSIDE.report, _INSIDE.leave = before


Enter = Callable[[int, int], None]


def run_items(
    items: Sequence[Any],
    call: Call,
    policy: Policy,
    worker: str,
    budget: float = float("inf"),
    interrupted: Callable[[], bool] = lambda: False,
    enter: Enter | None = None,
    singly: bool = False,
    step: int = 1,
    keep: float = float("inf"),
) -> Block:
    """Run items in order until they are done, the budget is spent, or one stops the run."""
    block = Block(worker=worker)
    begin, cpu = time.perf_counter(), time.process_time()
    unit = call.fit.of(policy.batch_size) if call.many is not None and policy.batch_size and not singly else 1
    first = unit if singly else max(unit, min(step, int(len(items) * _FIRST)) // unit * unit)
    feed = Feed() if keep == float("inf") else KeepingFeed(keep)
    loop = _Loop(
        items, block, policy, worker, unit, first, budget, interrupted, enter, singly, call.fit, keep, feed
    )
    outer, outer_loop = _INSIDE.values, _INSIDE.loop  # not None: this call is made from within an item
    _INSIDE.values, _INSIDE.loop = block.values if outer is None else outer, loop
    try:
        if policy.seed is None and policy.item_timeout is None:
            loop.run(stepper(call, policy, None, loop.feed, None), None)
        else:
            # the turn first: waiting for it does not make an item late
            with turn(policy.seed), seeded(policy.seed) as seed_for, _watched(loop, outer) as watch:
                loop.run(stepper(call, policy, seed_for, loop.feed, watch), watch)
    finally:
        _INSIDE.values, _INSIDE.loop = outer, outer_loop
    block.seconds, block.cpu = time.perf_counter() - begin, time.process_time() - cpu
    return block


def _watched(loop: _Loop, outer: list[Any] | None) -> Any:
    report = _INSIDE.report
    limit = loop.policy.item_timeout
    if limit is None or report is None:
        return nullcontext()
    return Watch(limit, loop.items, loop.block.values, loop.feed, report, outer)


def _forked() -> None:
    if _INSIDE.loop is not None:  # in a child that an item has forked the step ends with that item
        _INSIDE.loop.feed.end()


os.register_at_fork(after_in_child=_forked)


@dataclass(slots=True)
class _Loop:
    items: Sequence[Any]
    block: Block
    policy: Policy
    worker: str
    unit: int
    step: int
    budget: float
    interrupted: Callable[[], bool]
    enter: Enter | None
    singly: bool
    fit: Fit
    keep: float
    feed: Feed
    pid: int = field(default_factory=os.getpid)

    def run(self, do: Step, watch: Watch | None) -> None:
        clock = time.perf_counter
        begin = last = asked = clock()
        items, values, enter, budget, keep = self.items, self.block.values, self.enter, self.budget, self.keep
        steps = self.block.steps
        n, step = len(items), self.step
        while (at := len(values)) < n:
            if enter is not None:
                enter(at, step)
            if watch is not None:
                watch.begin()
            since = last  # when the items that are not in `steps` yet began
            try:
                do(items[at : at + step], values)
            except BaseException as error:  # SystemExit too: an item must not end its worker without a word
                if self.feed.begun:
                    since = self.feed.begun
                    steps.append((len(values) - at, since - last))
                    at = len(values)
                # where it is not known when the item began: its share of its step
                took = (clock() - since) / (len(values) - at + 1)
                # no variable for the attempt: the error leads to this frame, which would lead to the error
                if self.pid == os.getpid() and not self._failed(Attempt(error, took), do, watch):
                    break
            # a child that an item has forked, and that came back from the item: its parent goes on
            if self.pid != os.getpid():
                os._exit(0)
            now = clock()
            steps += self._timed(len(values) - at, now - since)
            if now - begin > budget or now - last > keep or (now - asked > _ASK_EVERY and self.interrupted()):
                break
            if now - asked > _ASK_EVERY:
                asked = now
            step, last = self._next_step(step, now - last), now
        self.block.step = step

    def _timed(self, n: int, took: float) -> list[tuple[int, float]]:
        unit = self.unit if self.policy.seed is None else 1
        last = n % unit or unit  # the last batch, or the last item
        if self.feed.long and n > last:
            return [(n - last, took - self.feed.long), (last, self.feed.long)]
        return [(n, took)]

    def _next_step(self, step: int, took: float) -> int:
        if took < self.budget * _QUICK:
            # no more than the chunk holds: where many items fail, steps would double without end
            return step if self.singly else min(2 * step, -(-len(self.items) // self.unit) * self.unit)
        if took > self.budget * _SLOW:
            return max(self.unit, step // 4 // self.unit * self.unit) if not self.feed.ended else self.unit
        return step

    def _failed(self, tried: Attempt, do: Step, watch: Watch | None) -> bool:
        block, unit = self.block, self.unit
        if is_the_runners(tried.error, block):
            return False
        part = self.items[len(block.values) : len(block.values) + unit]
        self._leave_spoilt(tried, 1 if self.policy.seed is not None else len(part))
        announced = self._announced(do, watch)
        if len(part) > 1 and is_too_large(tried.error, self.policy):
            go_on, fitted = in_halves(part, tried.error, block, announced, self.policy, self.worker)
            if fitted:
                self.fit.size = self.unit = fitted
            return go_on
        # a batch that raised goes again one by one, so that only the guilty item pays
        # a batch of one, at a chunk's end or where there is a seed, was the item's own attempt
        first = tried if len(part) == 1 or self.policy.seed is not None else None
        return one_by_one(part, first, block, announced, self.policy, self.worker)

    def _announced(self, do: Step, watch: Watch | None) -> Step:

        def announced(part: Sequence[Any], out: list[Any]) -> None:
            if self.enter is not None:
                self.enter(len(out), len(part))
            if watch is not None:
                watch.begin()
            begin = time.perf_counter()
            try:
                do(part, out)
            except BaseException as error:
                self._leave_spoilt(Attempt(error, time.perf_counter() - begin), len(part))
                raise

        return announced

    def _leave_spoilt(self, tried: Attempt, n: int) -> None:
        leave, at = _INSIDE.leave, len(self.block.values)
        if leave is not None and (note := spoilt_cuda(tried.error)):
            add_note(tried.error, note)  # `parallel_*` raise it as it is
            try:
                pickling.dumps(self.block.values)
            except ANYTHING:  # results on the GPU, where the kernel of any of these items may have failed
                at, n = 0, at + n
            outer = None if _INSIDE.values is self.block.values else _INSIDE.values
            leave(late_in(self.items, at, n, tried.seconds, outer, error=tried.error))
