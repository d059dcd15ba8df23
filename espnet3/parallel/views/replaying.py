"""One item of a run once more, in this process: with its provider, code and seed, and told what is not the same."""

from __future__ import annotations

import ast
import inspect
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import FOLDER, INDICES, Layout
from espnet3.parallel.engine.exceptions import describe_error
from espnet3.parallel.engine.seeding import seeded
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import adding
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.files import open_plain, refuse_others
from espnet3.parallel.ledger.folder import read_run
from espnet3.parallel.ledger.lines import index_json, merged_failure, read_line, read_merged
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SESSION, SPLIT, split_folders
from espnet3.parallel.ledger.values import from_json
from espnet3.parallel.messages import did_you_mean
from espnet3.parallel.runner.hooks import writes_files
from espnet3.parallel.runner.inline import build_here
from espnet3.parallel.views.remaking import Remade, remake

_PLANNED = 100_000  # indices among which a similar one is looked for


@dataclass(frozen=True, slots=True)
class Then:
    """The outcome of an item in the folder: a result, or the facts of a failure as plain data."""

    result: Any = None
    failure: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """An item that was run again."""

    index: Any
    seconds: float
    result: Any
    error: BaseException | None
    then: Then | None  # None where the folder says nothing of it
    same: bool | None  # results are equal, or errors have one type and message; None: not known


class Replay:
    """A run whose items can be run again in this process; nothing is written to its folder.

    This process takes over the run's working directory and search path. With `trust` the folder may be one that others
    own or may write to.

    Attributes:
        differences: A line for each thing that has changed.
    """

    def __init__(self, run: Path, trust: bool = False) -> None:
        self.run = run
        if not trust:
            refuse_others(run)
        self._remade: Remade = remake(run, own=not trust)
        self.differences = self._remade.differences
        self.runner: Any = self._remade.runner
        self._bound: Callable[[Any], Any] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def notes(self) -> list[str]:
        """Further differences between a run and its items run here."""
        found = []
        if self._remade.batched:
            found.append(
                f"it ran in a batch of up to {self._remade.batched}, and runs here in a batch of one"
            )
        if writes_files(self.runner):
            found.append(
                "the runner's writer hooks are not called, and output_dir is an empty folder for now"
            )
        return found

    def __call__(self, index: Any, around: AbstractContextManager[Any] | None = None) -> Replayed:
        """Run one item."""
        call, then = self.prepare(), outcome_of(self.run, index)
        result, error = None, None
        with seeded(self._remade.seed) as seed_for:
            if seed_for is not None:
                seed_for(index)
            begin = time.perf_counter()
            try:
                with around or nullcontext():
                    result = call(index)
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # SystemExit too: the error is the answer
                error = raised
            seconds = time.perf_counter() - begin
        return Replayed(index, seconds, result, error, then, _same(result, error, then))

    def close(self) -> None:
        """Remove the empty folder that stood for output_dir."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def prepare(self) -> Callable[[Any], Any]:
        """Build the env, and return what is called with an index; the first item would do it otherwise."""
        if self._bound is None:
            env = build_here(adding(self._remade.setup, self._entries()), None)
            if self._remade.batched:
                many = bind(self.runner.batch_forward, env)
                self._bound = lambda index: next(iter(many([index])))
            else:
                self._bound = bind(self.runner.forward, env)
        return self._bound

    def _entries(self) -> dict[str, Any]:
        """Return what the run folder adds to the env, with an empty folder in its place."""
        called = self.runner.batch_forward if self._remade.batched else self.runner.forward
        wanted = {"output_dir", "shard_subdir", "shard_id"}
        if not writes_files(self.runner):
            wanted &= inspect.signature(called).parameters.keys()
        if not wanted:
            return {}
        self._scratch = tempfile.TemporaryDirectory(prefix="espnet3-replay-")
        found = {"output_dir": self._scratch.name, "shard_subdir": "", "shard_id": 0}
        return {name: value for name, value in found.items() if name in wanted}


def index_of(run: Path, text: str) -> Any:
    """Return the index that was typed: a number, a quoted or a bare text, a list; one of the run's own."""
    candidates = [text]
    for read in (json.loads, ast.literal_eval):
        try:
            candidates.insert(0, read(text))
        except (ValueError, SyntaxError):
            continue
    if not (run / FOLDER / INDICES).exists():
        known = next((one for one in candidates if outcome_of(run, one) is not None), None)
        if known is None and (run / RESULTS).exists():  # the run is whole: each of its indices has an outcome
            said = read_run(run)["indices"]
            ends = " to ".join(dict.fromkeys([*said["shown"][:1], *said["shown"][-1:]])) or "none"
            raise ConfigError(f"{text} is not among the run's {said['count']:,} indices ({ends})")
        return candidates[0] if known is None else known
    items: Sequence[Any] = Layout(run).items()
    for one in candidates:
        if one in items:
            return one
    near = did_you_mean(text, map(str, items[:_PLANNED]))
    ends = f"{items[0]!r:.80} to {items[-1]!r:.80}" if items else "none"
    raise ConfigError(f"{text} is not among the run's {len(items):,} indices ({ends}).{near}")


def failed_indices(run: Path) -> list[Any]:
    """Return the indices whose outcome is a failure, in the order in which they are found."""
    if (run / ERRORS).exists():
        with open_plain(run / ERRORS) as file:
            return [merged_failure(line, run / ERRORS, number).index for number, line in enumerate(file, 1)]
    found = {position: index for position, index, _ in _lines(run, ERRORS)}
    for position, _, _ in _lines(run, RESULTS):
        found.pop(position, None)
    return [from_json(index, run) for index in found.values()]


def first_indices(run: Path, n: int) -> list[Any]:
    """Return the first indices that have a result, as they stand in the folder: at most `n`."""
    if (run / RESULTS).exists():
        with open_plain(run / RESULTS) as file:
            records = [
                read_merged(line, run / RESULTS, number) for number, line in enumerate(islice(file, n), 1)
            ]
        return [record["index"] for record in records if "result" in record]
    return [from_json(index, run) for _, index, _ in islice(_lines(run, RESULTS), n)]


def outcome_of(run: Path, index: Any) -> Then | None:
    """Return what the folder says of an item; None where it has no outcome."""
    try:
        wanted = index_json(index)
    except Exception:  # not an index that JSON can hold: the run cannot have it
        return None
    if (run / RESULTS).exists():
        for name in (ERRORS, RESULTS):
            with open_plain(run / name) as file:
                for number, line in enumerate(file, 1):
                    if b'"index":%b' % wanted in line[: len(wanted) + 64]:
                        record = read_merged(line, run / name, number)
                        if record["index"] == index and type(record["index"]) is type(index):
                            return Then(record["result"]) if "result" in record else Then(failure=record)
        return None
    for name in (RESULTS, ERRORS):
        last = None
        for _, one, outcome in _lines(run, name):
            last = outcome if one == wanted else last
        if last is not None:
            return Then(from_json(last, run)) if name == RESULTS else Then(failure=from_json(last, run))
    return None


def _lines(run: Path, name: str) -> Iterator[tuple[int, bytes, bytes]]:
    for kind in (SPLIT, SESSION):
        for split in split_folders(run, kind):
            if not (split / name).exists():
                continue
            with open_plain(split / name) as file:
                for line in file:
                    found = read_line(line)
                    if found is not None:
                        yield found


def _same(result: Any, error: BaseException | None, then: Then | None) -> bool | None:
    if then is None:
        return None
    if error is not None or then.failure is not None:
        if error is None or then.failure is None:
            return False
        return describe_error(error)[:2] == (then.failure.get("type"), then.failure.get("message"))
    try:
        return bool(result == then.result)
    except Exception:  # an array's comparison, say
        return None
