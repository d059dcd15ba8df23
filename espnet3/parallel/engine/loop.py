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

Of a step that has raised, a batch that was too large goes in halves, others one by one, with retries. For a run folder
each call gets a copy of an item that it may change, and `to_lines` then puts lines in the place of results.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from espnet3.parallel.checks import loaded
from espnet3.parallel.engine import exceptions, pickling
from espnet3.parallel.engine.inside import THREAD
from espnet3.parallel.engine.seeding import seeded, turn
from espnet3.parallel.engine.watch import Report, Watch, late_in
from espnet3.parallel.errors import BatchLengthError, add_note
from espnet3.parallel.messages import brief, counted
from espnet3.parallel.records import ItemFailure, Policy

if TYPE_CHECKING:
    from espnet3.parallel.engine.blame import Loss
    from espnet3.parallel.timing.recorder import ItemTimes

KEEP = 0.01  # seconds: an item that took longer goes to disk at once, where outcomes do
_QUICK, _SLOW = 1 / 16, 1 / 4  # of the time budget: a step that takes less grows, one that takes more shrinks
# of a chunk's items: a first step holds no more of them, however many the last chunk's steps held
_FIRST = 1 / 8
_ASK_EVERY = 0.05  # seconds between calls of `interrupted`: each is a system call, out of the caches
_NO_MEMORY = {"OutOfMemoryError", "ResourceExhaustedError"}  # torch's and cupy's, tensorflow's
# older torch, and its allocator of host memory; XLA; numba
_WORDS = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY")
_FIXED = {int, str, float, bool, type(None), bytes}  # types of items that no call can change


@dataclass(slots=True)
class Call:
    """The function called per item, bound to its env; the same for all chunks of a run in one process."""

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], Any] | None = None  # takes a list of items and returns as many results
    most: int = sys.maxsize  # items of a batch that fit into this process's memory, as far as is known
    mistake: BatchLengthError | None = None  # of `many`: no item's fault

    def batch(self, items: list[Any]) -> list[Any]:
        """Call `many`, and check the number of its results."""
        assert self.many is not None
        results = self.many(items.copy())  # which it may use up
        if isinstance(results, Iterable) and not isinstance(results, (list, tuple, str, bytes, dict, set)):
            results = list(results)
        is_list = isinstance(results, (list, tuple))
        if is_list and len(results) == len(items):
            return list(results)
        got = counted(len(results), "result") if is_list else type(results).__name__
        given = f"index ({brief(items[0])})" if len(items) == 1 else f"indices ({brief(items[0])}, ...)"
        wrong = f"batch_forward was given {len(items)} {given} and returned {got}"
        self.mistake = BatchLengthError(f"{wrong}; it must return one result per index, in their order")
        raise self.mistake


@dataclass(slots=True)
class Block:
    """The outcomes of the first `len(values)` items of a chunk."""

    values: list[Any] = field(default_factory=list)  # in order; a failed item's place holds its `ItemFailure`
    failed: list[int] = field(default_factory=list)  # positions of those
    retries: int = 0
    seconds: float = 0.0
    error: BaseException | None = None  # of the item after the last value, where the run must stop at it
    stop: ItemFailure | None = None  # its record; None where `error` is the runner's own mistake
    step: int = 1  # items that a step held at the end
    loss: Loss | None = None  # of a worker, that the only item here has failed by
    halved: int = 0  # times a batch did not fit into memory
    steps: list[tuple[int, float]] = field(default_factory=list)  # items and seconds of each
    worker: str = ""
    times: ItemTimes | None = None  # the steps summed up, for a run folder

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to the driver: without the steps, and with an error that may not load there."""
        names = "values", "failed", "retries", "seconds", "stop", "halved", "times"
        return _arrive, ({name: getattr(self, name) for name in names}, exceptions.pickle_error(self.error))

    def take_error(self) -> BaseException:
        """Return `error` and keep it no longer: it leads to frames that hold this block."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def spoil(self, at: int, error: BaseException, index: Any, policy: Policy) -> bool:
        """Make a result that cannot be kept a failure of its item; return whether the run stops there."""
        failure = exceptions.failure_of(error, index, 1, self.worker, cause="result")
        if policy.on_error == "raise":
            del self.values[at:]
            self.failed = [each for each in self.failed if each < at]
            self.error, self.stop = error, failure
            return True
        insort(self.failed, at)
        self.values[at] = failure
        return False


def _arrive(fields: dict[str, Any], raised: bytes | None) -> Block:
    return Block(error=exceptions.load_error(raised, fields["stop"]), **fields)


def items_in_hand() -> Sequence[Any]:
    """Return the item or batch that this thread is inside; where runs are nested, the inner one's."""
    loop: Loop | None = THREAD.loop
    if loop is None:
        return ()
    at = len(loop.block.values)
    return loop.items[at : at + loop.at_once]


@contextmanager
def on_a_worker(report: Report | None = None, replaced: bool = False) -> Iterator[None]:
    """Mark this thread as one that runs items for a driver.

    `report` ends this process with the items in progress, which took too long; where another one takes its place,
    also with those whose exception makes CUDA unusable in it.
    """
    before = THREAD.report, THREAD.leave
    THREAD.depth += 1
    THREAD.report, THREAD.leave = report, report if replaced else None
    try:
        yield
    finally:
        THREAD.depth -= 1
        THREAD.report, THREAD.leave = before


def run_items(loop: Loop) -> Block:
    """Run items in order until they are done, the budget is spent, or one stops the run."""
    begin, policy = time.perf_counter(), loop.policy
    block, outer, outer_loop = loop.block, THREAD.values, THREAD.loop
    # `outer` is not None: this call is made from within an item
    THREAD.values, THREAD.loop = block.values if outer is None else outer, loop
    try:
        limit, report = policy.item_timeout, THREAD.report
        watch = nullcontext() if limit is None or report is None else Watch(loop, limit, report, outer)
        # the turn first: waiting for it does not make an item late
        with turn(policy.seed), seeded(policy.seed) as loop.seed_for, watch:
            loop.run()
    finally:
        THREAD.values, THREAD.loop = outer, outer_loop
    block.seconds = time.perf_counter() - begin
    return block


# in a child that an item has forked the step ends with that item
os.register_at_fork(after_in_child=lambda: THREAD.loop and THREAD.loop.end_step())


class _Attempt(NamedTuple):
    error: BaseException
    seconds: float  # after which it was raised


@dataclass(slots=True)
class Loop:
    """The items for `run_items`, and how far they are."""

    items: Sequence[Any]
    call: Call
    policy: Policy
    worker: str
    budget: float = float("inf")
    interrupted: Callable[[], bool] = lambda: False
    enter: Callable[[int, int], None] | None = None
    singly: bool = False
    step: int = 1
    keep: float = float("inf")
    block: Block = field(init=False)
    size: int | None = field(init=False)  # of batches, as asked for
    unit: int = field(init=False)  # that a step is made of: 1, or the size of batches that fit
    seed_for: Callable[[Any], None] | None = None
    calls: int = 0  # of `do`
    began: float = float("inf")  # when the last one did
    at_once: int = 1  # items of the call in progress
    left: Iterable[Any] = ()  # what the step in progress has not begun
    ended: bool = False  # that step was ended early
    item_began: float = 0.0  # when the item in progress did; 0 where no clock is read between items
    long: float = 0.0  # seconds of the step's last item, where the step ended with it as it took long
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.block = Block(worker=self.worker)
        self.size = self.policy.batch_size if self.call.many is not None else None
        self.unit = min(self.size, self.call.most) if self.size and not self.singly else 1
        first = min(self.step, int(len(self.items) * _FIRST)) // self.unit * self.unit
        self.step = self.unit if self.singly else max(self.unit, first)

    def run(self) -> None:
        """Run step by step."""
        clock = time.perf_counter
        begin = last = asked = clock()
        items, values, enter, budget, keep = self.items, self.block.values, self.enter, self.budget, self.keep
        steps = self.block.steps
        n, step = len(items), self.step
        while (at := len(values)) < n and self.block.error is None:
            if enter is not None:
                enter(at, step)
            since = last  # when the items that are not in `steps` yet began
            try:
                self.do(items[at : at + step])
            except BaseException as error:  # SystemExit too: an item must not end its worker without a word
                if self.item_began:
                    since = self.item_began
                    steps.append((len(values) - at, since - last))
                    at = len(values)
                # where it is not known when the item began: its share of its step
                took = (clock() - since) / (len(values) - at + 1)
                if self.pid == os.getpid():
                    self.settle(error, took)
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

    def do(self, part: Sequence[Any]) -> None:
        """Run a step: append one result per item to the block's values; end early where another thread ends it."""
        values, call, one, many = self.block.values, self.call, self.call.one, self.call.batch
        if self.keep != float("inf") and not _FIXED.issuperset(map(type, part)):  # of a run folder
            one, many = (lambda item: call.one(own(item))), lambda items: call.batch(own(items))
        self.calls, self.began, self.at_once = self.calls + 1, time.perf_counter(), 1
        if self.seed_for is not None:
            # a batch of one where the runner has batches: what an item draws must not depend on
            # its neighbours, or on how many of them there are
            for item in self._feed(part):
                self.seed_for(item)
                values.extend(many([item]) if self.size else [one(item)])
        elif self.size is not None:
            fitting = min(self.size, call.most)
            for at in self._feed(range(0, len(part), fitting)):
                items = list(part[at : at + fitting])
                self.at_once = len(items)
                values.extend(many(items))
        else:
            append, had = values.append, len(values)
            # not `extend(map(...))`, which is no faster and takes an item's StopIteration for its own end
            for item in self._feed(part):
                append(one(item))
            if self.ended and len(values) == had:  # before its first item: a step runs one at least
                append(one(part[0]))

    def end_step(self) -> None:
        """End the step: what is left of its items, a list or a range, is used up in C, between two of them."""
        self.ended = True
        deque(self.left, maxlen=0)

    def _feed(self, part: Iterable[Any]) -> Iterator[Any]:
        self.ended, left = False, iter(part)
        self.left = left
        return left if self.keep == float("inf") else self._feed_timed(left)

    def _feed_timed(self, left: Iterator[Any]) -> Iterator[Any]:
        # the step ends with an item that took `keep` seconds or more: what is done is to be kept
        clock, keep = time.perf_counter, self.keep
        self.long, self.item_began = 0.0, clock()
        for item in left:
            yield item
            now = clock()
            if now - self.item_began > keep:
                self.long = now - self.item_began
                return
            self.item_began = now

    def _timed(self, n: int, took: float) -> list[tuple[int, float]]:
        unit = self.unit if self.policy.seed is None else 1
        last = n % unit or unit  # the last batch, or the last item
        if self.long and n > last:
            return [(n - last, took - self.long), (last, self.long)]
        return [(n, took)]

    def _next_step(self, step: int, took: float) -> int:
        if took < self.budget * _QUICK:
            # no more than the chunk holds: where many items fail, steps would double without end
            return step if self.singly else min(2 * step, -(-len(self.items) // self.unit) * self.unit)
        if took > self.budget * _SLOW:
            return max(self.unit, step // 4 // self.unit * self.unit) if not self.ended else self.unit
        return step

    # --- what becomes of items whose step has raised; where the run stops, the block has its error ---

    def settle(self, error: BaseException, seconds: float) -> None:
        """Settle the item or batch that a step has raised at; `seconds` are an item's share of the step."""
        at = len(self.block.values)
        part = self.items[at : at + self.unit]
        # a batch of one, at a chunk's end or where there is a seed, was the item's own attempt
        alone = len(part) == 1 or self.policy.seed is not None
        tried = self._raised(error, seconds, 1 if alone else len(part))
        if self.block.error is not None:
            return
        if not alone and is_too_large(error, self.policy):
            self.in_halves(part, error)
        else:  # a batch that raised goes again one by one, so that only the guilty item pays
            self.one_by_one(part, tried if alone else None)

    def one_by_one(self, items: Sequence[Any], failed: _Attempt | None) -> None:
        """Settle items one at a time, with retries.

        `failed` is the first item's attempt just now; None if it was tried only within its batch.
        """
        block, policy = self.block, self.policy
        for item in items:
            tried, failed = 1, failed or self._again([item])
            while failed is not None and block.error is None and tried <= policy.max_retries:
                block.retries += 1
                tried += 1
                failed = self._again([item])
            if failed is not None and block.error is None:
                took = failed.seconds
                failure = exceptions.failure_of(failed.error, item, tried, self.worker, seconds=took)
                if policy.on_error == "raise":
                    if note := exceptions.spoilt_cuda(failed.error):  # `parallel_*` raise it as it is
                        add_note(failed.error, note)
                    block.error, block.stop = failed.error, failure
                else:
                    block.failed.append(len(block.values))
                    block.values.append(failure)
            if block.error is not None:
                return
            failed = None

    def in_halves(self, part: Sequence[Any], error: BaseException) -> None:
        """Run a batch that did not fit into memory in smaller ones; later batches are as small."""
        size, worked = len(part), 0
        too_large: BaseException | None = error
        while part and self.block.error is None:
            if too_large is not None:
                traceback.clear_frames(too_large.__traceback__)  # they hold what the batch held
                torch = loaded("torch")
                if torch is not None and torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
                self.block.halved += 1
                size, too_large = -(-size // 2), None
            now = part[:size]
            failed = self._again(now)
            if failed is None:
                worked = max(worked, len(now))
            elif len(now) > 1 and is_too_large(failed.error, self.policy):
                too_large, size = failed.error, len(now)
                continue
            elif self.block.error is None:
                self.one_by_one(now, failed if len(now) == 1 else None)
            part, failed = part[len(now) :], None  # its frames hold what the batch held
        if worked:
            self.call.most = self.unit = worked

    def _again(self, part: Sequence[Any]) -> _Attempt | None:
        if self.enter is not None:
            self.enter(len(self.block.values), len(part))
        try:
            self.do(part)
        except BaseException as error:  # as in `run`
            return self._raised(error, time.perf_counter() - self.began, len(part))
        return None

    def _raised(self, error: BaseException, seconds: float, n: int) -> _Attempt:
        # Ctrl-C reaches main threads alone; in any other thread a KeyboardInterrupt is the item's
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        if error is self.call.mistake:  # a run inside an item may raise such an error, too
            self.block.error = error
        leave, at = THREAD.leave, len(self.block.values)
        if leave is not None and (note := exceptions.spoilt_cuda(error)):
            add_note(error, note)  # `parallel_*` raise it as it is
            try:
                pickling.dumps(self.block.values)
            except exceptions.ANYTHING:  # results on the GPU: any of these items' kernels may have failed
                at, n = 0, at + n
            outer = None if THREAD.values is self.block.values else THREAD.values
            leave(late_in(at, n, seconds, outer, error=error))
        return _Attempt(error, seconds)


def own(item: Any) -> Any:
    """Copy what a call may change of an item that JSON can hold; what it returns is the call's own."""
    kind = type(item)
    if kind is dict or kind is list or kind is tuple:
        held = item.values() if kind is dict else item
        if _FIXED.issuperset(map(type, held)):
            return kind(item)
        return dict(zip(item, map(own, held), strict=True)) if kind is dict else kind(map(own, held))
    if kind.__name__ == "Tensor":  # not deepcopy, which copies all that a view is a part of
        return item.detach().clone().requires_grad_(item.requires_grad)
    return item.copy("K") if kind.__name__ == "ndarray" else item


def is_too_large(error: BaseException, policy: Policy) -> bool:
    """Return whether a batch ran out of memory, and may be halved; with a seed, batches are of one item."""
    if not policy.split_batches or policy.seed is not None:
        return False
    if isinstance(error, MemoryError) or _NO_MEMORY & {kind.__name__ for kind in type(error).__mro__}:
        return True
    return exceptions.may_be_cudas(error) and any(word in exceptions.text_of(error) for word in _WORDS)


def to_lines(
    block: Block, positions: Sequence[int], items: Sequence[Any], policy: Policy, place: int = 0
) -> None:
    """Put a line in the place of each result of a block, and sum up its times from `place`; failures stay as they are.

    A result that JSON cannot hold is a failure of its item, with the cause "result"; trying again
    would give another one like it.
    """
    from espnet3.parallel.ledger.lines import encode_line  # 20 ms that a first result need not wait for
    from espnet3.parallel.timing.recorder import ItemTimes

    block.times = ItemTimes.of_steps(block.steps, place)
    failed = set(block.failed)
    for k, value in enumerate(block.values):
        if k in failed:
            continue
        try:
            block.values[k] = encode_line(positions[k], items[k], value)
        except Exception as error:  # a value's class may raise anything while it is looked at
            if block.spoil(k, error, items[k], policy):
                return
