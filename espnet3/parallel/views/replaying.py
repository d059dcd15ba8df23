"""One item of a run once more, in this process: with its provider, code and seed, and the differences named.

Runner and provider are made again from the run's folder.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.detached.job_spec import SCRIPT, ClassRef, load, make_provider
from espnet3.parallel.detached.layout import FOLDER, TEMPLATE, Layout
from espnet3.parallel.engine.exceptions import describe_error
from espnet3.parallel.engine.seeding import seeded
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import Adding
from espnet3.parallel.env_provider import keywords_of, made_with, worker_setup_of
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.functions.running import runner_of
from espnet3.parallel.ledger.files import read_json, refuse_others
from espnet3.parallel.ledger.folder import INDICES, kind_of, read_run
from espnet3.parallel.ledger.identity import changed_packages, changes, identify
from espnet3.parallel.ledger.lines import decode, failure_of, index_json, record_of
from espnet3.parallel.ledger.merge import RECEIPT, Results
from espnet3.parallel.ledger.split import FAILED, OK, Scan
from espnet3.parallel.messages import did_you_mean
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.execute import build_here
from espnet3.parallel.runner.hooks import writes_files
from espnet3.parallel.testing.answers import equal

_MASKED = "***"
# The indices are not made again, and a note of its own names masked values.
_KNOWN = re.compile(r"indices:|\S+: a masked value")


def _classes(said: dict[str, Any], notes: list[str]) -> tuple[Any, Any]:
    origin = said.get("origin") or {}
    cwd = str(origin.get("cwd") or "")
    if os.path.isdir(cwd):
        os.chdir(cwd)
    elif cwd:
        notes.append(f"the working directory: {cwd} is not there, and this one is {os.getcwd()}")
    command = origin.get("command") or [""]
    sys.argv[:] = command
    script = os.path.realpath(os.path.join(cwd, str(command[0])))
    refs = [_reference(what, said.get(what) or {}, script) for what in ("runner", "provider")]
    for ref in refs:
        root = str(ref.root)
        if root not in sys.path:
            sys.path.insert(0, root)
    return load(refs[0]), load(refs[1])


def _reference(what: str, said: dict[str, Any], script: str) -> ClassRef:
    module, _, name = str(said.get("path", "")).partition(":")
    file = said.get("file")
    if not file or "<locals>" in name:
        where = "in a function" if file else "in a notebook or a terminal"
        raise ConfigError(
            f"the {what} {name or '?'} was defined {where}, so that no other process can make it again: put it into a "
            ".py file, at its top level, and run that; or call its forward there, where it is"
        )
    return ClassRef(module, name, str(file), script=os.path.realpath(str(file)) == script)


class _Config(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _provider(cls: Any, config: Any, notes: list[str]) -> Any:
    if _MASKED in str(config):
        notes.append(
            "the config: secrets are masked in run.json and are not known here; what needs them gets '***'"
        )
    given = json.loads(json.dumps(config), object_hook=_Config)
    args = given.pop("args", [])
    known = set(inspect.signature(cls).parameters)
    by_name = {name: value for name, value in given.items() if name in known}
    if args and "config" in by_name:
        args = [by_name.pop("config"), *args]
    if by_name.get("config", ...) is None and set(by_name) == {"config"}:
        by_name = {}  # made without one
    try:
        provider = cls(*args, **by_name)
    except Exception as error:  # the user's code, with plain data where there may have been objects
        raise ConfigError(
            f"{cls.__qualname__} cannot be made again from run.json, which holds its arguments as plain data: "
            f"{type(error).__name__}: {error}"
        ) from error
    for name in given.keys() - known:  # it was set from outside
        setattr(provider, name, given[name])
    return provider


def _plain(value: Any) -> Any:
    if type(value) in (dict, _Config):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if type(value) is list else value


_PLANNED = 100_000  # indices that are searched for a similar one


@dataclass(frozen=True, slots=True)
class Replayed:
    """An item that was run again."""

    index: Any
    seconds: float
    result: Any
    error: BaseException | None
    then: ItemFailure | None  # if it has failed in the run
    same: bool | None  # results are equal, or errors have one type and message; None: not known


class Replay:
    """A run whose items can be run again in this process; nothing is written to its folder.

    This process takes over the run's working directory and search path. With `trust` others may own the folder or
    write to it. `differences` has a line for each thing that has changed.
    """

    def __init__(self, run: Path, trust: bool = False) -> None:
        self.run = run
        if not trust:
            refuse_others(run)
        said = read_run(run, own=not trust)
        notes: list[str] = []
        if not (run / FOLDER / TEMPLATE).exists():
            runner, cls = _classes(said, notes)
            provider = _provider(cls, said.get("config") or {}, notes)
        else:  # it has detached jobs
            spec = Layout(run, own=not trust).template()
            spec.surroundings.restore()
            runner, cls = load(spec.runner), load(spec.provider)
            provider = make_provider(cls, spec.arguments)
        if not issubclass(runner, BaseRunner):
            runner = runner_of(getattr(runner, FUNCTION))
        if SCRIPT in sys.modules:
            sys.modules[SCRIPT].__spec__ = None  # as a script has it that is run: its name is its file's
        self.runner = runner
        self._seed = said.get("seed")
        now = identify(runner, cls, _plain(made_with(provider)), [], seed=self._seed)
        notes += [line for line in changes(said, now) if not _KNOWN.match(line)]
        self.differences = (*notes, *(f"package {line}" for line in changed_packages(said, now)))
        size = (said.get("policy") or {}).get("batch_size")
        # its batch size, where its items went through `batch_forward`
        self._batched = size if size and runner.batch_forward is not BaseRunner.batch_forward else None
        self._setup, self._keywords = worker_setup_of(provider), keywords_of(provider)
        self.notes: list[str] = []  # further differences between a run and its items run here
        if self._batched:
            self.notes.append(f"it ran in a batch of up to {self._batched}, and runs here in a batch of one")
        if writes_files(runner):
            self.notes.append(
                "the runner's writer hooks are not called, and output_dir is an empty folder for now"
            )
        self._scratch = tempfile.TemporaryDirectory(prefix="espnet3-replay-")  # stands for output_dir

    def __call__(self, index: Any, around: AbstractContextManager[Any] | None = None) -> Replayed:
        """Run one item."""
        call, wanted = self._call, index_json(index)
        at = [at for at, item in enumerate(_items(self.run)) if index_json(item) == wanted]
        then = next(iter(_outcomes(self.run, at)), ...)
        result, error = None, None
        with seeded(self._seed) as seed_for:
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
        failed = then if isinstance(then, ItemFailure) else None
        return Replayed(index, seconds, result, error, failed, _same(result, error, then))

    def close(self) -> None:
        """Remove the empty folder that stood for output_dir."""
        self._scratch.cleanup()

    @cached_property
    def _call(self) -> Callable[[Any], Any]:
        # the function of an index; the env is built before the first item
        called = self.runner.batch_forward if self._batched else self.runner.forward
        entries = {"output_dir": self._scratch.name, "shard_subdir": "", "shard_id": 0}
        if not writes_files(self.runner):
            asked = inspect.signature(called).parameters
            entries = {name: value for name, value in entries.items() if name in asked}
        env = build_here(Adding(self._setup, entries), None)
        if not self._batched:
            return bind(called, env, self._keywords)
        many = bind(called, env)
        return lambda index: next(iter(many([index])))


def index_of(run: Path, text: str) -> Any:
    """Return the index that was typed: a number, a quoted or a bare text, a list; one of the run's own."""
    candidates: list[Any] = [text, Path(text)]
    for read in (lambda one: decode(json.loads(one)), ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            candidates.insert(0, read(text))
    items = _items(run)
    for one in candidates:
        if one in items:
            return one
    near = did_you_mean(text, map(str, items[:_PLANNED]))
    ends = f"{items[0]!s:.80} to {items[-1]!s:.80}" if items else "none"
    raise ConfigError(f"{text} is not among the run's {len(items):,} indices ({ends}).{near}")


def _items(run: Path) -> Sequence[Any]:
    said = read_run(run).get("indices") or {}
    if "range" in said:
        return range(*said["range"])
    return [decode(json.loads(one)) for one in read_json(run / INDICES)["list"]]


def failed_items(run: Path) -> list[ItemFailure]:
    """Return the records of the failed items, in the order of the list."""
    return _outcomes(run)


def _outcomes(run: Path, at: Sequence[int] | None = None) -> list[Any]:
    # those of some positions, as far as there are any; else all failures
    if (run / RECEIPT).exists():
        merged = Results(run)
        return merged.failures if at is None else [merged[position] for position in at]
    said, items, found = read_run(run), _items(run), list[Any]()
    scan = Scan(run, items, said["indices"]["sha256"], kind_of(said.get("plan") or {}))
    for position in range(len(items)) if at is None else at:
        if (state := scan.state[position]) == FAILED or (state == OK and at is not None):
            file, _, line = scan.line_of(position)
            found.append(record_of(line, file, 0)["result"] if state == OK else failure_of(line, file, 0))
    return found


def _same(result: Any, error: BaseException | None, then: Any) -> bool | None:
    if then is ...:  # the folder says nothing of it
        return None
    if isinstance(then, ItemFailure):
        return error is not None and describe_error(error)[:2] == (then.error_type, then.message)
    return error is None and equal(result, then)
