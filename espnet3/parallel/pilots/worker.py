"""The worker's side: threads that pull chunks of items from the driver and send outcomes back.

A process opens one channel per worker thread; a channel serves one run at a time and keeps
serving later ones. User code runs in these threads. In a Dask worker its own tasks run beside them.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from espnet3.parallel.engine.exceptions import ANYTHING, failure_of, pickle_error, spoilt_cuda
from espnet3.parallel.engine.loop import KEEP, Block, Call, Loop, on_a_worker, run_items, to_lines
from espnet3.parallel.engine.pickling import Pickler, dumps
from espnet3.parallel.engine.watch import Late, end_process, late_in
from espnet3.parallel.env.store import setup_watch
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.pilots.channel import SETUP, Channel, Mark, Message, connect
from espnet3.parallel.pilots.log_records import Hearing, Outlet
from espnet3.parallel.pilots.protocol import Hello, Report, RunSpec, forget, prepare, setup_report
from espnet3.parallel.records import Policy

if TYPE_CHECKING:
    import ssl

_ATTEMPTS = 4  # at a handshake, which on a busy host takes longer than its time limit
_PAUSE = 0.5  # seconds after the first one; more after each further one
_LOOK = 0.005  # seconds between looks whether the last slot has ended

_SPECS = WeakValueDictionary[tuple[Any, int], RunSpec]()  # by the key of the driver's pool, and run
_LOADING = threading.Lock()


@dataclass(eq=False)
class Slots:
    """The slots of this process to one driver, a channel each.

    `as_new`: whether no item has changed the process, and no edit its modules.
    """

    address: Any
    key: bytes
    hello: Hello
    tls: ssl.SSLContext | None = None
    as_new: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self.unreached = ""  # why the last slot has given up, where the driver may live
        self.leaving = False  # the worker is about to end: chunks in hand are the last ones
        # a worker has more slots than threads, for runs that overlap; no more of them than it has
        # threads are inside user code at once, so that an env is as private as the user asked for
        self.permits = threading.Semaphore(self.hello.threads)
        self._pilots: set[Pilot] = set()
        self.n_open = 0  # slots; at the end none: the driver is gone, or out of reach
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start one slot per worker thread, and one for a run beside the first."""
        with self._lock:
            for _ in range(self.hello.threads + 1):
                self._start()

    def keep_one_free(self) -> None:
        """Start another slot where each has a run: one that begins meanwhile gets slots of its own."""
        with self._lock:
            if 0 < self.n_open == sum(pilot.in_run for pilot in self._pilots):
                self._start()

    def is_needed(self) -> bool:
        """Return whether the driver waits for a chunk that was in hand when it began to leave."""
        return any(pilot.busy and not pilot.channel.at_end() for pilot in list(self._pilots))

    def end(self, seconds: float) -> None:
        """Let the items in hand go on, so many seconds at most, and slots drop their envs: the process ends."""
        self.leaving = True
        until = time.monotonic() + seconds
        # one that is not busy is at the end of its channel: its driver, which has closed that, ends what takes too long
        while any(not pilot.busy or time.monotonic() < until for pilot in list(self._pilots)):
            time.sleep(_LOOK)

    def _start(self) -> None:
        threading.Thread(target=self._slot, name="pilot", daemon=True).start()
        self.n_open += 1

    def _connect(self, hello: Hello) -> Channel | str:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                channel = connect(self.address, self.key, tls=self.tls)
                channel.send(hello)
            except (FileNotFoundError, ConnectionRefusedError, PermissionError):
                return ""  # the driver has gone, or is another one
            except OSError as error:  # it cannot be reached from here, or is too busy just now
                why = error
                time.sleep(_PAUSE * attempt)
            else:
                return channel
        return f"its driver did not answer {_ATTEMPTS} times: {why}"

    def _slot(self) -> None:
        while not self.leaving:
            # a unix socket is in the pool's private folder; a TCP address leads to another host
            mark = Mark(os.path.dirname(self.address) if isinstance(self.address, str) else "")
            channel = self._connect(replace(self.hello, mark=mark.name))
            if isinstance(channel, str):
                self.unreached = channel
                break
            pilot = Pilot(channel, self, mark)
            with self._lock:
                self._pilots.add(pilot)
            try:
                pilot.serve()
            finally:
                with self._lock:
                    self._pilots.discard(pilot)
        with self._lock:
            self.n_open -= 1


@dataclass(eq=False)
class Pilot:
    """One slot's loop over the messages of `protocol`.

    The process's permits are taken while user code runs (not while an answer is sent: that may wait).
    """

    channel: Channel
    process: Slots
    mark: Mark

    end = staticmethod(end_process)  # an item that takes too long ends its process
    replaced = True  # by another process, where this one is beyond use

    def __post_init__(self) -> None:
        self.worker = self.process.hello.worker
        self.busy = False  # with a run's env or items
        self.in_run = False  # it serves one, or is about to
        self._step = 1  # items that the steps of this run's last chunk held
        self._send_lock = threading.Lock()
        self._outlet = Outlet(self.worker, self.channel, self._send_lock)
        self.inbox: deque[Any] = deque()
        self.calls: dict[int, tuple[Call, RunSpec]] = {}

    def serve(self) -> None:
        """Serve until the driver closes the channel."""
        try:
            while True:
                message = self.inbox.popleft() if self.inbox else self.channel.recv()
                self.busy = self.in_run = message[0] != "end"
                if self.process.leaving and self.busy:  # a chunk sent ahead has not begun
                    self._send("bye", message[1])
                    self.channel.finish()  # an answer may still be on its way
                    return
                getattr(self, "_on_" + message[0])(*message[1:])
                self.busy = False
        except OSError:
            self.channel.close()
            self.busy = False
            for each in list(self.calls):  # their driver cannot say any more that they have ended
                self._on_end(each)
        except BaseException:  # an item has broken this process beyond use
            with suppress(Exception):  # standard error may be broken too
                traceback.print_exc()
            self.channel.close()
            self.end()

    def _send(self, what: str, run_id: int, *more: Any) -> None:
        with self._send_lock:
            self._outlet.flush(run_id)
            self.channel.send((what, run_id, *more))

    def _on_run(
        self, run_id: int, blob: bytes, timeout: float | None, path: list[str], hearing: Hearing, asked: bool
    ) -> None:
        self.process.keep_one_free()
        if self._ended(run_id):  # it was over before this slot looked at it: build nothing
            self._send("over", run_id)
            return
        if asked and not self.process.as_new():
            self._send("changed", run_id)
            return
        given_up: list[Report] = []

        def give_up(report: Report) -> None:
            given_up.append(report)
            with suppress(OSError):  # by then another worker may have ended the run
                self._send("setup", run_id, report)

        late = setup_watch(timeout, lambda text: give_up((f"on worker {self.worker}: {text}", None)))
        sys.path.extend(entry for entry in path if entry not in sys.path)
        try:
            with self.process.permits, late, self._outlet.open(run_id):
                self.mark.begin(run_id, SETUP)
                begin = time.perf_counter()
                self._outlet.hear(hearing)
                # once a process: its slots share functions and their globals, as threads share those of a module
                with _LOADING:
                    run = self.process.key, run_id
                    spec = _SPECS[run] = _SPECS.get(run) or pickle.loads(blob)
                imported = time.perf_counter()
                call = prepare(spec)
        except BaseException as error:  # whatever user code raises here, the driver must hear of it
            self.mark.clear()
            if not given_up:
                give_up(setup_report(error, self.worker))
            return
        built = time.perf_counter()
        self.mark.clear()
        if given_up:
            return
        self.calls[run_id] = (call, spec)
        self._step = 1
        self._send("ready", run_id, imported - begin, built - imported)

    def _on_chunk(
        self, run_id: int, items: Any, start: int, singly: bool, positions: Any, budget: float
    ) -> None:
        # its setup failed, which the driver knows; or it was sent ahead, and is no longer wanted
        if run_id not in self.calls or self._has_end(run_id):
            return
        call, spec = self.calls[run_id]

        def interrupted() -> bool:
            return self.process.leaving or self._ended(run_id)

        def report(late: Late) -> None:
            try:
                self._send("late", run_id, late)
            finally:  # also where the driver has gone
                self.end()

        with self.process.permits, self._outlet.open(run_id):
            self.mark.begin(run_id, start)
            if isinstance(items, bytes):
                try:
                    items = pickle.loads(items)
                except ANYTHING as error:  # whatever user classes raise, the driver must hear of it
                    self.mark.clear()
                    failure = failure_of(error, None, 1, self.worker)
                    self._send("unread", run_id, failure, pickle_error(error))
                    return
            keep = float("inf") if positions is None else KEEP
            with on_a_worker(report, self.replaced):
                how = budget, interrupted, self.mark.step, singly, self._step, keep
                block = run_items(Loop(items, call, spec.policy, self.worker, *how))
            try:
                spec.check_loaded()  # the items may have imported modules
            except ParallelError as error:
                self._on_end(run_id)
                self.mark.clear()
                self._send("setup", run_id, setup_report(error, self.worker))
                return
            self._step = block.step
            self.mark.leave(len(block.values))
            if positions is not None:
                to_lines(block, positions, items, spec.policy)
            answer = self._pickled(run_id, items, block, spec.policy, report)
            block.error = None  # its traceback leads to this frame, and the frame to it
        with suppress(*ANYTHING):  # an item has closed it, or replaced it
            sys.stdout.flush()
        with self._send_lock:
            self._outlet.flush(run_id)
            self.channel.send_message(answer)
        self.mark.clear()  # only now: an item may have closed the socket, and sending ends this process then

    def _ended(self, run_id: int) -> bool:
        with self._send_lock:  # TLS must not read in one thread and write in another
            while self.channel.readable():
                self.inbox.append(self.channel.recv())
        return self._has_end(run_id)

    def _has_end(self, run_id: int) -> bool:
        return any(m[0] == "end" and m[1] == run_id for m in self.inbox)

    def _pickled(
        self, run_id: int, items: Any, block: Block, policy: Policy, leave: Callable[[Late], None]
    ) -> Message:
        answer = "done", run_id, block
        try:
            return Message(answer)
        except ANYTHING as error:  # some result needs more than pickle (a class made in a script) ...
            if self.replaced and spoilt_cuda(error):  # or is on a GPU, where some kernel has failed
                leave(late_in(0, len(block.values), block.seconds, None, error=error))
        try:
            return Message(answer, Pickler)
        except ANYTHING:  # ... or cannot travel at all: a failure takes its place
            for at, value in enumerate(block.values):
                try:
                    dumps(value)
                except ANYTHING as reason:
                    wrong = TypeError(
                        f"the result of type {type(value).__qualname__} cannot be sent back ({reason}); "
                        "return plain data, or write it to a file and return the path"
                    )
                    if block.spoil(at, wrong, items[at], policy):
                        break
            return Message(answer, Pickler)

    def _on_end(self, run_id: int) -> None:
        if run_id in self.calls:  # else it was not prepared here
            _, spec = self.calls.pop(run_id)
            forget(spec)
