"""The worker's side: threads that pull runs of items from the driver and send outcomes back.

A `PilotHost` is installed on every worker as a Dask plugin, so workers that join late get one
too. It opens one channel per worker thread; a channel serves one run at a time and keeps
serving later jobs. User code runs in these threads, Dask's own tasks run beside them.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
from distributed import WorkerPlugin

from espnet3.parallel.engine import Block, Call, describe_error, failure_of, run_items
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.injection import ENVS, SetupFn, SetupWatch, bind
from espnet3.parallel.launchers.channel import Channel, ChannelClosedError, connect, pickle_parts
from espnet3.parallel.plan import BUDGET
from espnet3.parallel.raising import pickle_error
from espnet3.parallel.records import ItemFailure, Policy


@dataclass(frozen=True, slots=True)
class Hello:
    """How a slot introduces itself.

    Attributes:
        worker: The Dask worker's name.
        address: Its address.
        pid: Its process.
        host: Its host's name.
        control: True for the one channel per worker that only starts further slots.
    """

    worker: str
    address: str
    pid: int
    host: str
    control: bool = False

    @property
    def process(self) -> tuple[str, int]:
        """What dies together."""
        return (self.host, self.pid)


@dataclass(frozen=True, slots=True)
class Job:
    """What a slot needs to know before its first run of a job.

    Attributes:
        one: The function called per item.
        many: The function called per batch, or None.
        kwargs: Keywords the caller gave for every item.
        env_key: The env to use; "" is the one registered last (`get_client(setup_fn=...)`).
        setup: How to build it; None if it is registered already.
        policy: Errors, retries, seed, batch size.
        setup_timeout: Seconds the env may take, or None.
    """

    one: Callable[..., Any]
    many: Callable[..., Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    env_key: str | None = None
    setup: SetupFn | None = None
    policy: Policy = field(default_factory=Policy)
    setup_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Head of a run's answer; the values follow in the same message.

    Attributes:
        failed: Positions in the values that hold an `ItemFailure`.
        retries: Times an item was tried again.
        seconds: Time spent in the run.
        stop: The failure that ends the run, where `on_error` is "raise".
        error: Its exception, pickled, where it can be; or the runner's own mistake.
    """

    failed: list[int]
    retries: int
    seconds: float
    stop: ItemFailure | None = None
    error: bytes | None = None


@dataclass(frozen=True, slots=True)
class SetupReport:
    """Why a slot cannot take part in a job.

    Attributes:
        message: For the user, with the worker's traceback.
        error: The exception, pickled, or None if it cannot travel.
    """

    message: str
    error: bytes | None = None


class PilotHost(WorkerPlugin):
    """Opens this worker's slots to one driver.

    Args:
        address: The driver's listener.
        key: The pool's key.
        name: The plugin's name, one per pool.
    """

    def __init__(self, address: Any, key: bytes, name: str) -> None:
        self.address = address
        self.key = key
        self.name = name

    def setup(self, worker: Any) -> None:
        """Start the control thread and one slot per worker thread."""
        self._hello = Hello(str(worker.name), worker.address, os.getpid(), socket.gethostname())
        self._open_slots(worker.state.nthreads)
        threading.Thread(target=self._control, name="pilot-control", daemon=True).start()

    def teardown(self, worker: Any) -> None:
        """Nothing to do: the threads end with their channels."""

    def _open_slots(self, n: int) -> None:
        for _ in range(n):
            threading.Thread(target=self._slot, name="pilot", daemon=True).start()

    def _connect(self, hello: Hello) -> Channel | None:
        try:
            channel = connect(self.address, self.key)
            channel.send(hello)
        except (OSError, PermissionError):  # the driver has gone, or cannot be reached from here
            return None
        return channel

    def _control(self) -> None:
        h = self._hello
        channel = self._connect(Hello(h.worker, h.address, h.pid, h.host, control=True))
        if channel is None:
            return
        try:
            while True:
                self._open_slots(channel.recv())
        except ChannelClosedError:
            channel.close()

    def _slot(self) -> None:
        channel = self._connect(self._hello)
        if channel is not None:
            Pilot(channel, self._hello.worker).serve()


class Pilot:
    """One slot's loop.

    Messages down: ("job", id, pickled Job), ("run", id, items or their pickle), ("end", id). Messages up:
    ("ready", id), ("setup", id, SetupReport), ("done", id, Done, values).
    """

    def __init__(self, channel: Channel, worker: str) -> None:
        self.channel = channel
        self.worker = worker
        self._send_lock = threading.Lock()
        self._inbox: deque[Any] = deque()
        self._calls: dict[int, tuple[Call, Job]] = {}
        self._broken: set[int] = set()

    def serve(self) -> None:
        """Serve until the driver closes the channel."""
        try:
            while True:
                message = self._inbox.popleft() if self._inbox else self.channel.recv()
                getattr(self, "_on_" + message[0])(*message[1:])
        except (ChannelClosedError, OSError):
            self.channel.close()

    def _send(self, message: Any) -> None:
        with self._send_lock:
            self.channel.send(message)

    def _on_job(self, job_id: int, blob: bytes) -> None:
        if self._ended(job_id):  # it was over before this slot came to it: build nothing
            self._broken.add(job_id)
            return

        def give_up(report: SetupReport) -> None:
            self._broken.add(job_id)
            self._send(("setup", job_id, report))

        with self._watch(job_id, give_up) as watch:
            try:
                job: Job = cloudpickle.loads(blob)
                watch.start(job.setup_timeout)
                call = prepare(job)
            except BaseException as error:  # whatever user code does here, the driver must hear of it
                watch.stop()
                if job_id not in self._broken:
                    give_up(setup_report(error, self.worker))
                return
        if job_id in self._broken:
            return
        self._calls[job_id] = (call, job)
        self._send(("ready", job_id))

    def _watch(self, job_id: int, give_up: Callable[[SetupReport], None]) -> _Watch:
        return _Watch(lambda text: give_up(SetupReport(f"on worker {self.worker}: {text}")))

    def _on_run(self, job_id: int, items: Any) -> None:
        if job_id not in self._calls:  # its setup failed; the driver knows
            return
        call, job = self._calls[job_id]
        if isinstance(items, bytes):
            try:
                items = pickle.loads(items)
            except Exception as error:  # whatever user classes raise, the driver must hear of it
                self._broken.add(job_id)
                del self._calls[job_id]
                self._send(("setup", job_id, setup_report(error, self.worker)))
                return
        block = run_items(items, call, job.policy, self.worker, BUDGET, lambda: self._ended(job_id))
        sys.stdout.flush()
        self._answer(job_id, items, block, job.policy)

    def _ended(self, job_id: int) -> bool:
        while self.channel.readable():
            self._inbox.append(self.channel.recv())
        return any(m[0] == "end" and m[1] == job_id for m in self._inbox)

    def _answer(self, job_id: int, items: Any, block: Block, policy: Policy) -> None:
        done = head_of(block)
        try:
            parts = pickle_parts(("done", job_id, done, block.values))
        except Exception:  # some result needs more than pickle (a class made in a script) ...
            parts = self._by_value(job_id, items, block, done, policy)
        with self._send_lock:
            self.channel.send_parts(*parts)

    def _by_value(self, job_id: int, items: Any, block: Block, done: Done, policy: Policy) -> Any:
        try:
            return pickle_parts(("done", job_id, done, block.values), cloudpickle.Pickler)
        except Exception:  # ... or cannot travel at all
            values, done = portable(items, block, policy, self.worker)
            return pickle_parts(("done", job_id, done, values))

    def _on_end(self, job_id: int) -> None:
        _, job = self._calls.pop(job_id, (None, None))
        if job is not None and job.env_key:
            ENVS.drop(job.env_key)


class _Watch:
    """A `SetupWatch` whose timeout is known only once the job has been unpickled."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._inner: SetupWatch | None = None

    def __enter__(self) -> _Watch:
        return self

    def start(self, timeout: float | None) -> None:
        self._inner = SetupWatch(timeout, self._report).__enter__()

    def stop(self) -> None:
        if self._inner is not None:
            self._inner.__exit__()

    def __exit__(self, *_: object) -> None:
        self.stop()


def prepare(job: Job) -> Call:
    """Build the job's env where it is not there yet, and bind the functions to it.

    Raises:
        WorkerSetupError, SignatureError, EnvConflictError: As `EnvStore.get` and `bind` say.
    """
    if job.env_key and job.setup is not None:
        ENVS.register(job.env_key, job.setup)
    env = ENVS.get(ENVS.default if job.env_key == "" else job.env_key)
    many = bind(job.many, env, job.kwargs) if job.many is not None else None
    return Call(bind(job.one, env, job.kwargs), many)


def setup_report(error: BaseException, worker: str) -> SetupReport:
    """Word a failed setup for the driver."""
    if isinstance(error, ParallelError):
        message = f"on worker {worker}: {error}"
    else:
        kind, text, trace = describe_error(error)
        message = f"on worker {worker}: {kind}: {text}\n\n{trace}"
    return SetupReport(message, pickle_error(error))


def head_of(block: Block) -> Done:
    """Return the head of a block's answer."""
    return Done(block.failed, block.retries, block.seconds, block.stop, pickle_error(block.error))


def portable(items: Any, block: Block, policy: Policy, worker: str) -> tuple[list[Any], Done]:
    """Make a block's values travel one by one: pickle, then cloudpickle, then a failure in its place.

    Returns:
        The values, each wrapped in `Pickled` where pickle alone would not do, and the answer's head.
    """
    values: list[Any] = []
    failed = list(block.failed)
    stop, error = block.stop, pickle_error(block.error)
    for position, value in enumerate(block.values):
        try:
            pickle.dumps(value, 5)
            values.append(value)
            continue
        except Exception:  # user classes may raise anything while being pickled
            pass
        try:
            values.append(Pickled(cloudpickle.dumps(value)))
            continue
        except Exception as reason:  # as above; recorded as this item's failure
            wrong = TypeError(
                f"the result of type {type(value).__qualname__} cannot be sent back ({reason}); "
                "return plain data, or write it to a file and return the path"
            )
            failure = failure_of(wrong, items[position], 1, worker, cause="result")
        if policy.on_error == "raise":
            stop, error = failure, pickle_error(wrong)
            break
        failed.append(position)
        values.append(failure)
    return values, Done(sorted(failed), block.retries, block.seconds, stop, error)


class Pickled:
    """A value that only cloudpickle could pickle (a class made in a script, a lambda)."""

    __slots__ = ("blob",)

    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def __reduce__(self) -> Any:
        return cloudpickle.loads, (self.blob,)
