"""The `parallel` block: read, copied, checked as a whole, and never changed afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import takewhile
from typing import Any

from espnet3.parallel import checks
from espnet3.parallel.backends import BACKENDS, Backend, Kind, unknown_env
from espnet3.parallel.backends.check import (
    MISSING,
    OF_TRAINER,
    is_missing,
    is_option,
    misplaced_in_trainer,
    option_problems,
    unknown_key,
)
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, masked, named, shown, warn_caller

_MOST_WORKERS = 1_000_000
# A key of ESPnet3 that asks for what is the case: a lease ends soon after its holder, and no lock of a killed run stays
_MOOT = "allow_overwrite_lock"


def registered(config: Any) -> Any:
    """Return a checked copy of a caller's object, for `get_parallel_config`.

    The copy is a `ParallelConfig`; of a `DictConfig` it is another `DictConfig`: resolved, with the user's own keys,
    and always with `env`, `n_workers` and `options`.
    """
    parsed = ParallelConfig.parse(config)
    if not _is_omegaconf(config):
        return parsed
    kept = {key: config[key] for key in config if key not in _NAMES}
    given = {key: parsed[key] for key in _NAMES if key in config or key in ("env", "n_workers", "options")}
    plain = _plain({**kept, **given}, "", [])
    return checks.loaded("omegaconf").OmegaConf.create(plain, flags={"allow_objects": True})


class Options(Mapping[str, Any]):
    """Read-only options of a backend: each read returns a copy.

    Containers are plain dicts and lists, so a cluster class takes `dict(options)` as it is. Other objects (a
    `Security`, a class) are not copied. `repr` masks secrets.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = _plain(values, "", [])

    def __getitem__(self, name: str) -> Any:
        return _plain(self._values[name], name, [])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(masked(self._values))


def _key(default: Any, sort: checks.Sort) -> Any:
    return field(default=default, metadata={"sort": sort})


_seconds = partial(checks.Number, most=checks.MOST_SECONDS, unit=" of seconds", example="600")


def _is_adapt(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"minimum", "maximum"}
        and all(checks.is_whole(n) for n in value.values())
        and 0 <= value["minimum"] <= value["maximum"] <= _MOST_WORKERS
        and value["maximum"] > 0
    )


_ADAPT = checks.Fits(
    _is_adapt,
    "such as adapt: {minimum: 0, maximum: 64}, numbers of workers with 0 <= minimum <= maximum, and maximum from 1 "
    f"to {_MOST_WORKERS}",
    none="null",
)


@dataclass(frozen=True, slots=True, eq=False)
class ParallelConfig(Mapping[str, Any]):
    """A checked `parallel` block; it also reads as a mapping (`config["env"]`, `config.get(...)`).

    Attributes:
        env: Backend that starts the workers, a row of `espnet3.parallel.backends`.
        n_workers: Workers asked for; "auto" under `local`: as many as there are processors that this process may use.
        options: Arguments for the backend's cluster class.
        setup_timeout: Seconds a provider may take to build its env on a worker; None: no limit.
        start_timeout: Seconds without any worker before giving up, where none is queued in an earlier one's place.
        frozen_timeout: Seconds without a sign of life from a worker's process (no processor time; on another host, no
            heartbeat) until its items go to others and a worker of ours is killed; None: no limit.
        idle_timeout: Seconds that worker processes of this machine stay after a run, for the next one; 0: none stay.
        detached: Settings of detached runs (`DetachedSettings`).
        security: "auto" and "on": TLS, on one machine too, with a certificate of the run; "off": anyone who can connect
            runs code as the owner.
        adapt: `{minimum: 0, maximum: 64}` lets the number of workers follow the work; None: a fixed number.

    Raises:
        ConfigError: Lists all mistakes.
    """

    env: str = "local"
    n_workers: int = _key(
        1, checks.Whole(least=1, most=_MOST_WORKERS, example="4 (under local also auto: all processors)")
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    setup_timeout: float | None = _key(None, _seconds(above=0, none="null for no limit"))
    start_timeout: float = _key(60.0, _seconds(above=0))
    frozen_timeout: float | None = _key(300.0, _seconds(above=2, none="null for no limit"))
    idle_timeout: float = _key(5.0, _seconds(least=0))
    detached: Mapping[str, Any] = field(default_factory=dict)
    security: str = _key("auto", checks.Choice(("auto", "on", "off")))
    adapt: Mapping[str, int] | None = _key(None, _ADAPT)

    @classmethod
    def parse(cls, config: Any) -> ParallelConfig:
        """Return the configuration that a caller's object describes.

        Args:
            config: None (the defaults), a ParallelConfig, any mapping, or a `DictConfig`, whose
                interpolations are resolved. Later edits of the object change nothing.

        Raises:
            ConfigError: Lists all mistakes, each with its place, its value and the fix.
        """
        return config if isinstance(config, cls) else cls(**_checked(config))

    def __post_init__(self) -> None:
        for name, value in _checked({name: getattr(self, name) for name in _NAMES}).items():
            object.__setattr__(self, name, Options(value) if name in ("options", "detached") else value)

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


_NAMES = tuple(each.name for each in fields(ParallelConfig))


def _checked(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    problems: list[str] = []
    raw = _plain_block(config, problems)
    env = raw.get("env", "local")
    backend = BACKENDS.get(env) if isinstance(env, str) else None
    if backend is None and not is_missing(env):
        problems.append(f"env: {unknown_env(env)}")
    _check_keys(raw, backend, problems)
    for each in fields(ParallelConfig):
        name, sort, given = each.name, each.metadata.get("sort"), raw.get(each.name)
        if sort is not None and name in raw and not is_missing(given):
            raw[name] = _as_meant(name, given, backend)
            if refusal := sort.refusal(raw[name]) or _refused_by_kind(backend, name, raw[name]):
                problems.append(checks.problem(name, given, refusal))
    for name in ("options", "detached"):
        raw[name] = {} if raw.get(name) is None else raw[name]  # a line `options:` with nothing after it
    problems += option_problems(backend, raw["options"]) + _detached_problems(raw["detached"])
    if problems:
        raise _wrong(problems)
    return raw


def _plain_block(config: Any, problems: list[str]) -> dict[str, Any]:
    try:
        raw = _plain(config, "", problems)
    except RecursionError:
        raise ConfigError("The parallel config contains itself, or is hundreds of levels deep") from None
    if not isinstance(raw, dict):
        hint = "; load the file first and pass its parallel block" if isinstance(config, str) else ""
        raise ConfigError(
            "The parallel config must be a mapping with env, n_workers and options "
            f"(a dict, a DictConfig or a ParallelConfig), not {type(config).__name__}: {shown(raw)}{hint}"
        )
    if "parallel" in raw:
        raise ConfigError(
            not_indented(raw)
            or "This is a configuration that holds a parallel block, not the block itself: pass config.parallel"
        )
    return raw


def check_trainer(block: Any, known: Sequence[str] = ()) -> None:
    """Refuse keys of `parallel` in a `trainer` block (a mapping or a `DictConfig`) with a ConfigError.

    With `known`, the arguments of `lightning.Trainer`, any other key is refused as well.
    """
    if not isinstance(block, Mapping):
        return
    problems: list[str] = []
    for key in block:
        refusal = misplaced_in_trainer(key, _NAMES) if isinstance(key, str) else ""
        if not refusal and known and key not in known:
            refusal = f"lightning.Trainer has no such argument.{did_you_mean(key, known)}"
        if refusal:
            problems.append(checks.problem(str(key), _entry(block, key, str(key), problems), refusal))
    if problems:
        raise _wrong(problems, "trainer")


def not_indented(config: Any) -> str:
    """Return the mistake in a config whose block `parallel` or `trainer` is empty, with its keys beside it; or ""."""
    keys = list(config)
    for block, own in (("parallel", _NAMES), ("trainer", OF_TRAINER - {"num_device", "trainer"})):
        if block not in keys or config[block] is not None:
            continue
        above, below = keys[: keys.index(block)], keys[keys.index(block) + 1 :]
        beside = list(takewhile(own.__contains__, below))
        if beside:
            is_flat = beside[-1] == "options" and config["options"] is None
            inside = list(takewhile(is_option, below[len(beside) :])) if is_flat else []
            steps = [(", ".join(part), n) for part, n in ((beside, 2), (inside, 4)) if part]
            return (
                f"{block} is empty, and what belongs to it stands beside it: YAML has blocks by their indentation. "
                f"Indent {' and '.join(f'{names} by {n} spaces' for names, n in steps)}"
            )
        if block == "parallel" and "env" in above:
            return "parallel is empty, and env stands above it: move env below, indented by 2 spaces"
    return ""


def _wrong(problems: list[str], block: str = "parallel") -> ConfigError:
    lines = [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
    message = "\n".join([f"The {block} config has {len(problems)} problems:", *lines])
    error = ConfigError(message if len(problems) > 1 else f"The {block} config is wrong: {problems[0]}")
    error.problems = tuple(problems)
    return error


def _check_keys(raw: dict[str, Any], backend: Backend | None, problems: list[str]) -> None:
    known = f"Known: {', '.join(_NAMES)}"
    raw.pop(_MOOT, None)
    for key, value in [each for each in raw.items() if each[0] not in _NAMES]:
        place = f"{named(key)} = {shown(value, key)}"
        why = unknown_key(backend, key, value, _NAMES) if isinstance(key, str) else f"unknown key. {known}"
        if why:
            problems.append(f"{place}: {why}")
        else:
            del raw[key]
            warn_caller(f"The parallel config: {place} is ignored: no such key. {known}")


def _as_meant(name: str, value: Any, backend: Backend | None) -> Any:
    if name == "n_workers" and value == "auto" and backend is not None and backend.kind is Kind.LOCAL:
        from espnet3.parallel.backends.machine import processors  # only needed here

        return processors()
    # an interpolation such as ${oc.env:N} gives text; int() alone would also take "+4" and "4_0"
    if name == "n_workers" and isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value):
        return int(value)
    if name == "security" and isinstance(value, bool):  # YAML reads on and off so
        return "on" if value else "off"
    is_time = name.endswith("_timeout") and checks.is_number(value) and abs(value) <= checks.MOST_SECONDS
    return float(value) if is_time else value


def _refused_by_kind(backend: Backend | None, name: str, value: Any) -> str:
    if backend is None or value is None:
        return ""
    if name == "security" and value == "on" and backend.kind is Kind.KUBERNETES:
        return "pods have no certificate of the run; leave it out, and keep others away by a network policy"
    if name == "adapt" and backend.kind not in (Kind.BATCH, Kind.KUBERNETES):
        return f"only batch schedulers and kube adapt; {backend.name} has n_workers"
    return ""


@dataclass(frozen=True, slots=True)
class DetachedSettings:
    """How a detached run is cut and sent."""

    # number of shards; None: four for each worker, so that slow ones even out
    shards: int | None = _key(None, checks.Whole(least=1, none="null"))
    # environment variables to record at submission and to set in the jobs
    variables: Sequence[str] | None = _key(
        None, checks.Fits(checks.lists(str), "a list of names of environment variables", none="null")
    )
    # copy the user's code at submission: later edits do not reach queued jobs
    snapshot: bool = _key(False, checks.FLAG)
    # the largest index the site allows in a job array; None: the scheduler's own
    array_limit: int | None = _key(None, checks.Whole(least=1, none="null"))
    # factor by which `retry` raises the memory after an out-of-memory kill
    retry_memory_factor: float | None = _key(None, checks.Number(above=1, none="null", example="1.5"))
    # have the scheduler requeue a job that stops at its walltime or is preempted
    requeue: bool = _key(True, checks.FLAG)


def _detached_problems(block: Any) -> list[str]:
    if not isinstance(block, dict):
        return [f"detached = {shown(block)}: must be a mapping, such as {{shards: 100}}"]
    problems, sorts = list[str](), {each.name: each.metadata["sort"] for each in fields(DetachedSettings)}
    for name, value in block.items():
        if name not in sorts:
            problems.append(
                f"detached.{name}: unknown key.{did_you_mean(name, sorts)} Known: {', '.join(sorts)}"
            )
        elif refusal := sorts[name].refusal(value):
            problems.append(checks.problem(f"detached.{name}", value, refusal))
    return problems


def _plain(value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, Mapping):
        place = f"{where}." if where else ""
        return {key: _entry(value, key, f"{place}{named(key)}", problems) for key in value}
    if isinstance(value, (list, tuple)) or _is_omegaconf(value):
        return [_entry(value, at, f"{where}[{at}]", problems) for at in range(len(value))]
    if isinstance(value, Set):
        items = [_plain(item, where, problems) for item in value]
        return sorted(items, key=lambda item: (str(item), type(item).__name__))
    return checks.as_python(value)


def _entry(container: Any, key: Any, where: str, problems: list[str]) -> Any:
    omegaconf = checks.loaded("omegaconf") if _is_omegaconf(container) else None
    unresolved = () if omegaconf is None else omegaconf.errors.OmegaConfBaseException
    missing = omegaconf is not None and omegaconf.OmegaConf.is_missing(container, key)
    try:
        value = MISSING if missing else container[key]
    except unresolved as error:
        reason = str(error).splitlines()[0]
        problems.append(f"{where}: {reason}; define what it refers to, or write the value")
        return MISSING
    if is_missing(value):
        problems.append(f"{where} = {MISSING}: the value is missing; write one")
        return MISSING
    return _plain(value, where, problems)


def _is_omegaconf(value: Any) -> bool:
    # Only a program that has imported omegaconf can hold one of its objects.
    return isinstance(value, getattr(checks.loaded("omegaconf"), "Container", ()))
