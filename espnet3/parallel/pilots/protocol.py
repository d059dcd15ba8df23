"""Messages between the driver and a worker slot.

The second field of each message is the run's number.

Messages down: ("run", id, pickled RunSpec, setup_timeout, sys.path, Hearing, whether the process must be as new),
    ("end", id), ("chunk", id, items or their pickle, start, singly, their positions in the caller's list for a run with
    `as_lines`, seconds it may take).
Messages up: ("ready", id, seconds of imports, seconds of the env), ("setup", id, Report),
    ("log", id, records and lines of items), ("done", id, Block), ("late", id, Late),
    ("unread", id, ItemFailure without its index, pickled error) where the items could not be unpickled,
    ("changed", id) where the process is not as it was before its first run, and has to be,
    ("over", id) where the end came before the slot looked at the run, ("bye", id) where the worker ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import describe_error, load_error, pickle_error
from espnet3.parallel.engine.loop import Call
from espnet3.parallel.env.injection import bind, name_of
from espnet3.parallel.env.store import ENVS, Adding, SetupFn
from espnet3.parallel.env_provider import carried_by
from espnet3.parallel.errors import ParallelError, WorkerSetupError, say_where
from espnet3.parallel.records import Policy

if TYPE_CHECKING:
    from espnet3.parallel.provenance.parts import LoadedCode


@dataclass(frozen=True, slots=True)
class Hello:
    """A slot's introduction."""

    worker: str  # its name
    address: str
    pid: int
    host: str
    threads: int = 1  # how many of its slots one run may use
    mark: str = ""  # name of the slot's mark in the pool's folder

    @property
    def process(self) -> tuple[str, int]:
        """Host and pid: what dies together."""
        return (self.host, self.pid)


@dataclass(frozen=True)  # with slots it would be pickled in Python, for each run
class RunSpec:
    """The function, env and policy of a run, for a slot before its first chunk."""

    one: Callable[..., Any]  # called per item
    many: Callable[..., Any] | None = None  # called per batch
    kwargs: dict[str, Any] = field(default_factory=dict)  # given by the caller for every item
    env_key: str | None = None
    setup: SetupFn | None = None  # builds the env
    env_stays: bool = False  # when the run is over: it is that of the client's plugin
    policy: Policy = field(default_factory=Policy)
    setup_timeout: float | None = None  # seconds
    check: Callable[[dict[str, Any]], None] | None = None  # called with the env before the first item
    as_lines: bool = False  # answer with the lines of a run folder in place of the results
    loaded: LoadedCode | None = None  # the driver's code, where a run folder says what made its results
    names: pickling.MainNames = field(default_factory=pickling.MainNames)  # last

    def check_loaded(self) -> None:
        """Raise a ConfigError where this process has loaded other code than the driver."""
        if self.loaded is not None:
            self.loaded.check("this process")

    def bound(self, env: dict[str, Any]) -> Call:
        """Return its functions, bound to the env once that is checked."""
        if self.check is not None:
            self.check(env)
        self.check_loaded()  # the env may have imported modules
        many = bind(self.many, env, self.kwargs) if self.many is not None else None
        return Call(bind(self.one, env, self.kwargs), many)


Report = tuple[str, bytes | None]  # of a setup that failed: words for the user, and the exception pickled


def prepare(spec: RunSpec) -> Call:
    """Build the run's env where it is not there yet, and bind the functions to it."""
    spec.check_loaded()
    if spec.env_key and spec.setup is not None:
        ENVS.register(spec.env_key, spec.setup)
    try:
        return spec.bound(ENVS.get(spec.env_key))
    except BaseException:
        forget(spec)
        raise


def forget(spec: RunSpec) -> None:
    """Drop the env that was built for a run alone."""
    if spec.env_key and not spec.env_stays:
        ENVS.drop(spec.env_key)


def pack(spec: RunSpec) -> bytes:
    """Pickle a run's spec for the workers."""
    try:
        return pickling.dumps(spec)
    except Exception as error:
        setup, carried = spec.setup, {name_of(spec.one): spec.one}
        while isinstance(setup, Adding):
            carried = {**setup.entries, **carried}
            setup = setup.build
        carried = {**carried_by(setup), **carried}
        parts = (pickling.culprit(value, name) for name, value in carried.items())
        what = next(filter(None, parts), f"what {name_of(spec.one)} or its env's setup refers to")
        say_where(
            error,
            f"{what} cannot be sent to a worker: make it inside the function, or in a provider or setup_fn",
        )
        raise


def setup_report(error: BaseException, worker: str) -> Report:
    """Word a failed setup for the driver."""
    if isinstance(error, ParallelError):
        message = f"on worker {worker}: {error}"
    else:
        kind, text, trace = describe_error(error)
        message = f"on worker {worker}: {kind}: {text}\n\n{trace}"
    return message, pickle_error(error)


def setup_error(report: Report) -> ParallelError:
    """Make the driver's exception of a worker's failed setup, keeping our own kinds."""
    message, blob = report
    error = load_error(blob)
    made: ParallelError
    if isinstance(error, ParallelError):
        made, error = type(error)(message), error.__cause__
    else:
        made = WorkerSetupError(message)
    made.__cause__ = error
    return made
