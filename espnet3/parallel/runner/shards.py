"""Runners with writers of their own run whole shards, each in a folder, from `open_writers` to `close_writers`.

To the engine a shard is one item: it goes to any free slot, and starts over in an emptied folder if its worker dies.
Inside it, the runner's items go through the same loop as everywhere. Shards are contiguous stretches of the caller's
order and do not depend on the number of workers, so that their files put together have the same bytes anywhere. A
resumed run keeps its shards; one whose folder holds the file `done` does not run again.

The driver hands out the shards, settles who ended a worker by the mark in its shard's folder, and notes what is done.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.checks import as_python
from espnet3.parallel.engine.blame import OUTSIDE, Charges, Fate, History, Loss
from espnet3.parallel.engine.exceptions import failure_of, item_error, recorded_error
from espnet3.parallel.engine.loop import KEEP, Block, Call, Loop, own, run_items, to_lines
from espnet3.parallel.engine.seeding import turn
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.env.injection import bind, name_of
from espnet3.parallel.env.store import seen_as
from espnet3.parallel.ledger.errors import FolderWriteError
from espnet3.parallel.ledger.files import make_folder, read_or_none, write_json, write_plainly, writing
from espnet3.parallel.records import ItemFailure, NoItem, Policy
from espnet3.parallel.runner.hooks import STATE_HOOKS, WRITER_HOOKS, folder_entries, is_default, new_state
from espnet3.parallel.runner.progress import Report
from espnet3.parallel.timing.recorder import ItemTimes, TimesRecorder

if TYPE_CHECKING:
    from espnet3.parallel.ledger.folder import OpenRun
    from espnet3.parallel.pilots.protocol import RunSpec

SHARDS = 64  # per run: enough to keep 8 workers busy, few enough to look at
# So few indices are a trial of a recipe: ESPnet3's tests expect one shard for two or three, two for four
FEW = 4
_TAKING_RESULTS = ("write_record", "reduce_state", "merge", "write_outputs")
_MARK = "in_flight.json"

# Called with the places [begin, end) of the shard's items in progress, or None, and the hook that it is in, or ""
Mark = Callable[[tuple[int, int] | None, str], None]
# Runs a spec's work, and yields its chunks with their outcomes
Launch = Callable[["RunSpec", Work], Generator[tuple[Chunk, Block], None, None]]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's work."""

    number: int  # its place in the order; its folder is `split.<number>`
    folder: str  # the folder of its writers
    items: Sequence[Any]  # its indices
    begin: int = 0  # the position of the first one in the run's index list
    # positions that earlier attempts failed by and that do not run, with their failures
    skip: dict[int, ItemFailure] = field(default_factory=dict)
    # whether its items run without batches: one of a batch ended a worker, or took too long
    one_by_one: bool = False

    @property
    def marked(self) -> tuple[Path, range]:
        """The folder that gets a mark when it is done, and its positions."""
        return Path(self.folder), range(self.begin, self.begin + len(self.items))

    def __repr__(self) -> str:
        return f"shard {self.number} (items {self.begin} to {self.begin + len(self.items) - 1})"


def cut(n: int, shards: int, cost: Sequence[float] | None, align: int) -> list[int]:
    """Cut `n` items into at most so many contiguous shards of about equal cost, at batch boundaries."""
    shards = min(n, max(1, shards))
    if cost is None or not any(cost):
        return sorted({n * number // shards // align * align for number in range(shards)})
    begins, goal, have = [0], sum(cost) / shards, 0.0
    for end in range(1, n):
        have += cost[end - 1]
        if have >= goal * len(begins) * (1 - 1e-9) and end % align == 0:
            begins.append(end)
    return begins


def shards_of(begins: Sequence[int], items: Sequence[Any], base: Path) -> list[Shard]:
    """Return the shards that begin at these positions, each with its folder under `base`."""
    return [
        Shard(number, str(base / f"split.{number}"), items[begin:end], begin)
        for number, (begin, end) in enumerate(pairwise([*begins, len(items)]))
    ]


@dataclass(frozen=True, slots=True)
class Hooks:
    """A runner's functions for a worker."""

    forward: Callable[..., Any]
    batch_forward: Callable[..., Any] | None  # None where the items run one by one
    writers: list[Callable[..., Any]]  # those of `WRITER_HOOKS`
    states: list[Callable[..., Any]]  # those of `STATE_HOOKS`, if the runner overrides one of them
    keeps: bool  # whether the run folder holds the results, too

    @classmethod
    def of(cls, runner: Any, batched: bool) -> Hooks:
        """Return the hooks of a runner's class."""
        own_states = not all(is_default(runner, name) for name in STATE_HOOKS)
        # a `write_record` of its own puts them elsewhere than into the folder
        takers = {name for name in _TAKING_RESULTS if not is_default(runner, name)}
        return cls(
            runner.forward,
            runner.batch_forward if batched else None,
            [getattr(runner, name) for name in WRITER_HOOKS],
            [getattr(runner, name) for name in STATE_HOOKS if own_states],
            keeps=not takers or ("write_outputs" in takers and "merge" not in takers),
        )

    def check(self, env: dict[str, Any]) -> None:
        """Check an env against all hooks, before the first shard."""
        env = {"shard_id": 0, **env}  # each shard adds its own
        self.call(env, batches=True)
        self.bound(env)

    def bound(self, env: dict[str, Any]) -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
        """Return the hooks for writers and those for states, bound to the env."""
        writers = [bind(hook, env, n_positional=n) for hook, n in zip(self.writers, (1, 3, 2), strict=True)]
        states = [bind(hook, env, n_positional=n) for hook, n in zip(self.states, (0, 2, 1), strict=False)]
        return writers, states

    def call(self, env: dict[str, Any], *, batches: bool) -> Call:
        """Return `forward`, and with `batches` also `batch_forward`, bound to the env."""
        many = self.batch_forward if batches else None
        return Call(bind(self.forward, env), bind(many, env) if many is not None else None)


def run_shard(shard: Shard, env: dict[str, Any], hooks: Hooks, policy: Policy, mark: Mark) -> Block:
    """Run one shard from `open_writers` to `close_writers`, in an emptied folder."""
    # with a seed, other threads wait: a hook may draw random numbers, and an item there would find them gone
    with turn(policy.seed):
        env = {"shard_id": shard.number, **env}
        return _Attempt(shard, env, hooks, policy, mark, f"shard {shard.number}").run()


@dataclass(slots=True, eq=False)
class _Attempt:
    shard: Shard
    env: dict[str, Any]
    hooks: Hooks
    policy: Policy
    mark: Mark
    name: str
    result: Block = field(init=False)  # a line for the run folder, or an `ItemFailure`, for each item
    blamed: Any = field(init=False)  # for an exception now: the index whose result is written, or a hook

    def run(self) -> Block:
        begin, folder = time.perf_counter(), Path(self.shard.folder)
        self.result, self.blamed = Block(times=ItemTimes()), NoItem(f"open_writers of {self.name}")
        try:
            with writing(folder):
                shutil.rmtree(folder, ignore_errors=True)
                make_folder(folder)
            self.mark(None, "open_writers")
            write, close = self._open(folder)
            try:
                self._run_items(write)
                self.blamed = NoItem(f"close_writers of {self.name}")
            finally:
                # after an error too: no item is to blame if it ends this process
                self.mark(None, "close_writers")
                close()
            self.mark(None, "")
        except KeyboardInterrupt:
            raise
        except FolderWriteError as error:  # the run's own files, not the hook's
            self._stop(error, failure_of(error, NoItem(self.name), 1, self.name, "runner"))
        except BaseException as error:  # SystemExit too
            self._stop(error, failure_of(error, self.blamed, 1, self.name))
        self.result.seconds = time.perf_counter() - begin
        return self.result

    def _open(self, folder: Path) -> tuple[Callable[[Any, Any], None], Callable[[], None]]:
        # what writes an index's result, and what closes
        env = self.env
        folder = seen_as(folder, Path(str(env["output_dir"]), str(env["shard_subdir"]), folder.name))
        writers, states = self.hooks.bound(env)
        begin, add, end = states or writers
        state: Any = _returned(begin(), begin) if states else new_state(folder, self.shard.number)
        opened = [] if states else [begin(folder)]

        def write(index: Any, result: Any) -> None:
            nonlocal state
            if isinstance(state, dict):  # a runner's own `init_state` may return another object
                state["index"] = index
            if states:
                state = _returned(add(state, result), add)
            else:
                add(*opened, result, state)

        return write, lambda: end(*opened, state)

    def _run_items(self, write: Callable[[Any, Any], None]) -> None:
        call = self.hooks.call(self.env, batches=not self.shard.one_by_one)
        n, skip = len(self.shard.items), self.shard.skip
        size = (self.policy.batch_size or 1) if call.many is not None else 1
        while (at := len(self.result.values)) < n and self.result.stop is None:
            if at in skip:
                self._failed(skip[at])
            else:
                self._run_step(at, min([at + size, n, *[k for k in skip if k > at]]), call, write)

    def _run_step(self, at: int, end: int, call: Call, write: Callable[[Any, Any], None]) -> None:
        items = self.shard.items[at:end]
        self.blamed = NoItem(self.name)
        self.mark((at, end), "")
        block = run_items(Loop(items, call, self.policy, self.name, keep=KEEP))
        results, keeps = block.values, self.hooks.keeps
        block.values = [each if keeps or isinstance(each, ItemFailure) else None for each in results]
        to_lines(block, range(self.shard.begin + at, self.shard.begin + end), items, self.policy, at)
        assert self.result.times is not None and block.times is not None
        self.result.times.merge(block.times)
        self.result.retries += block.retries
        self.result.halved += block.halved
        for index, result, line in zip(items, results, block.values, strict=False):
            if isinstance(line, ItemFailure):
                self._failed(line)
            else:
                self.blamed = index
                write(own(index), result)
                self.result.values.append(line)
        if block.error is not None:
            self._stop(block.error, block.stop or failure_of(block.error, items[0], 1, self.name, "runner"))

    def _failed(self, failure: ItemFailure) -> None:
        self.result.failed.append(len(self.result.values))
        self.result.values.append(failure)

    def _stop(self, error: BaseException, failure: ItemFailure) -> None:
        self.result.stop, self.result.error = failure, error


def _returned(state: Any, hook: Callable[..., Any]) -> Any:
    if state is None:
        raise TypeError(
            f"{name_of(hook)} returned None, and must return the shard's state: add `return state`"
        )
    return state


def _set_mark(shard: Shard, in_flight: tuple[int, int] | None, hook: str) -> None:
    file = Path(shard.folder, _MARK)
    with writing(file):
        if in_flight or hook:
            write_plainly(file, json.dumps({"in_flight": in_flight, "hook": hook}).encode())
        else:
            file.unlink(missing_ok=True)  # a hook may have emptied the folder


def _take_mark(shard: Shard) -> dict[str, Any]:
    file = Path(shard.folder, _MARK)
    found = read_or_none(file) or {}
    file.unlink(missing_ok=True)
    return found


def write_manifest(folder: Path, shard_subdir: str, begins: Sequence[int], items: Sequence[Any]) -> None:
    """Write `manifest.json`, the shards of a run in the form of ESPnet3's tools."""
    # here: a run without a folder needs less of the ledger
    from espnet3.parallel.ledger.folder import MANIFEST
    from espnet3.parallel.ledger.lines import encode

    shards = [
        {"shard_id": number, "items": [encode(as_python(item), "index") for item in items[begin:end]]}
        for number, (begin, end) in enumerate(pairwise([*begins, len(items)]))
    ]
    write_json(folder / MANIFEST, {"version": 1, **folder_entries(folder, shard_subdir), "shards": shards})


def run_shards(
    run: Any, folder: OpenRun, left: Sequence[Shard], spec: RunSpec, launch: Launch, report: Report
) -> None:
    """Run those shards of a run (`run.Run`) to their end that are left."""
    write_manifest(folder.path, run.runner.shard_subdir, folder.plan["shards"], run.items)
    if not left:
        return
    with writing(folder.path):
        for shard in left:  # an earlier driver's marks: its death took its workers along, and blames no item
            _take_mark(shard)
    hooks, policy = Hooks.of(type(run.runner), run.batched), run.policy

    def of_a_driver(shard: Shard, **env: Any) -> Block:
        return run_shard(shard, env, hooks, policy, partial(_set_mark, shard))

    spec = replace(
        spec,
        one=of_a_driver,
        many=None,
        policy=Policy(on_error="record", poison_after=0),  # of shards; their items have their own
        check=hooks.check,
    )
    recorder = TimesRecorder(folder.split.append_times, run.items)
    driver = _Driver(folder, policy, report, recorder)
    parts = [shard.marked[1] for shard in left]
    work = Work(left, [sum(run.cost[part.start : part.stop]) if run.cost else len(part) for part in parts])
    with closing(launch(spec, work)) as pairs, recorder:
        for chunk, block in pairs:
            recorder.workers(report.tally)
            driver.take(chunk, block, work)


@dataclass(frozen=True, slots=True)
class _Driver:
    folder: OpenRun
    policy: Policy
    report: Report
    recorder: TimesRecorder
    histories: dict[int, History] = field(default_factory=dict)  # of shards that were lost, by their numbers

    def take(self, chunk: Chunk, block: Block, work: Work) -> None:
        if block.error is not None:
            raise item_error(block.take_error(), block.stop)
        ago = sum(value.seconds for value in block.values if isinstance(value, Block))
        for place, (shard, value) in enumerate(zip(chunk.items, block.values, strict=False), chunk.start):
            if isinstance(value, Block):
                ago -= value.seconds
                self._done(shard, value, block.worker, ago)
            elif block.loss is None:  # its result could not travel, though its values are checked
                raise item_error(
                    RuntimeError(value.message), replace(value, index=NoItem(f"shard {shard.number}"))
                )
            else:
                again = self._after_loss(shard, block.loss, value.worker)
                work.put_back(Chunk(place, [again], Charges(suspect=True)))

    def _done(self, shard: Shard, result: Block, worker: str, ago: float) -> None:
        values, failed, stop = result.values, set(result.failed), result.stop
        if stop is not None:
            error = result.take_error()
            if stop.cause == "runner":
                raise error
            if not isinstance(stop.index, NoItem):  # else a hook without an item failed
                self.folder.append_failures([(shard.begin + len(values), stop)])
            raise item_error(error, stop)
        self.folder.shard_done(
            *shard.marked,
            {shard.begin + k: line for k, line in enumerate(values) if k not in failed},
            {shard.begin + k: values[k] for k in result.failed},
        )
        self.recorder.took(worker, result, shard.marked[1], ago)
        self.report.add(result)

    def _after_loss(self, shard: Shard, loss: Loss, worker: str) -> Shard:
        history = self.histories.setdefault(shard.number, History(self.policy))
        found = _take_mark(shard)
        begin, end = found.get("in_flight") or (OUTSIDE, OUTSIDE + 1)
        fate = history.add(replace(loss, begin=begin, items=end - begin, hook=found.get("hook", "")))
        if fate is not Fate.FAILED:
            self.report.retries += loss.seconds is not None and end - begin == 1
            return replace(shard, one_by_one=shard.one_by_one or end - begin > 1)
        index = NoItem(f"shard {shard.number}") if begin == OUTSIDE else shard.items[begin]
        failure = history.failure(begin, index, worker)
        if begin == OUTSIDE or self.policy.on_error == "raise":
            raise item_error(recorded_error(failure), failure)
        return replace(shard, skip={**shard.skip, begin: failure})
