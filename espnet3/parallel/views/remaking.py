"""A run's runner and provider made again in this process, from what its folder says; and what is not the same."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.detached.job_spec import SCRIPT, ClassRef, load, make_provider
from espnet3.parallel.detached.layout import FOLDER, TEMPLATE, Layout
from espnet3.parallel.detached.looking.status import no_run
from espnet3.parallel.env_provider import made_with, worker_setup_of
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.functions.running import runner_of
from espnet3.parallel.ledger.folder import read_run
from espnet3.parallel.ledger.identity import changed_packages, changes, identify
from espnet3.parallel.provenance import FUNCTION

_MASKED = "***"
# The indices are not made again, and what is masked is said in other words.
_KNOWN = ("indices:", "config: a masked value")


@dataclass(frozen=True, slots=True)
class Remade:
    """Runner, provider and settings of a run, as far as they could be made again."""

    runner: Any
    setup: Callable[[], dict[str, Any]]  # builds the env
    seed: int | None
    batched: int | None  # its batch size, where its items went through `batch_forward`
    differences: tuple[str, ...]  # a line for each thing that has changed


def remake(run: Path, own: bool = True) -> Remade:
    """Import a run's classes and make its provider again.

    The working directory and the search path of this process become those of the run.
    """
    try:
        said = read_run(run, own=own)
    except FileNotFoundError:
        raise ConfigError(no_run(run)) from None
    policy = said.get("policy") or {}
    notes: list[str] = []
    runner: Any
    cls: Any
    if (run / FOLDER / TEMPLATE).exists():
        spec = Layout(run, own=own).template()
        spec.surroundings.restore()
        runner, cls = load(spec.runner), load(spec.provider)
        provider = make_provider(cls, spec.arguments)
    else:
        runner, cls = _classes(said, notes)
        provider = _provider(cls, said.get("config"), notes)
    if not issubclass(runner, BaseRunner):
        runner = runner_of(getattr(runner, FUNCTION))
    if SCRIPT in sys.modules:
        sys.modules[SCRIPT].__spec__ = None  # as a script has it that is run: its name is its file's
    now = identify(runner, cls, _plain(made_with(provider)), [], seed=said.get("seed"))
    notes += [line for line in changes(said, now) if not line.startswith(_KNOWN)]
    notes += [f"package {line}" for line in changed_packages(said, now)]
    size = policy.get("batch_size")
    batched = size if size and runner.batch_forward is not BaseRunner.batch_forward else None
    return Remade(runner, worker_setup_of(provider), said.get("seed"), batched, tuple(notes))


def _classes(said: dict[str, Any], notes: list[str]) -> tuple[Any, Any]:
    origin = said.get("origin") or {}
    cwd = str(origin.get("cwd") or "")
    if os.path.isdir(cwd):
        os.chdir(cwd)
    elif cwd:
        notes.append(f"the working directory: {cwd} is not there, and this one is {os.getcwd()}")
    command = origin.get("command") or [""]
    script = os.path.realpath(os.path.join(cwd, str(command[0])))
    refs = [_reference(what, said.get(what) or {}, script) for what in ("runner", "provider")]
    for ref in refs:
        root = str(ref.root)
        if root not in sys.path:
            sys.path.insert(0, root)
    runner, provider = (load(ref) for ref in refs)
    return runner, provider


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
    """Plain data in the place of a config whose class is not recorded: a mapping whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _provider(cls: Any, config: Any, notes: list[str]) -> Any:
    """Make a provider again from what run.json shows of its arguments."""
    if not isinstance(config, dict):
        raise ConfigError(
            "run.json does not say what the provider was made with: an earlier version wrote it"
        )
    if _MASKED in str(config):
        notes.append(
            "the config: secrets are masked in run.json and are not known here; what needs them gets '***'"
        )
    given = {name: _usable(value) for name, value in config.items()}
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
    """Return what `_usable` was given."""
    if type(value) in (dict, _Config):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if type(value) is list else value


def _usable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _Config({key: _usable(item) for key, item in value.items()})
    return [_usable(item) for item in value] if isinstance(value, list) else value
