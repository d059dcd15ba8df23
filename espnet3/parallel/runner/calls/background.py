"""`parallel_submit` without an open client: an item of a run that waits for more of them.

    submit ──> _Host (a queue as `Work`) ──> outcomes, in a thread ──> worker: run_call ──> future

The run has processes of our own, which stay for the next one as after any run, or a cluster that is opened for its
first call. They are there while any call is unfinished.
"""

from __future__ import annotations

import atexit
import heapq
import os
import pickle
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import espnet3.parallel.pilots.driver  # noqa: F401  a program may fork while a thread would import it
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING, failure_of, item_error, show_remote
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.env.calls import call_text, setup_key
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import ENVS
from espnet3.parallel.errors import NoWorkersError, WorkerSetupError, add_note, say_where
from espnet3.parallel.local.fork_server import without_dask
from espnet3.parallel.local.workers import wanted_by
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import ItemFailure, NoItem, Policy, place_of
from espnet3.parallel.runner.execute import outcomes, start_client

_LINGER = 0.02  # seconds after its last call for which a run waits for the next one
_UNANSWERED: weakref.WeakSet[Future[Any]] = weakref.WeakSet()


def run_call(blob: bytes) -> Any:
    """Run a submitted call in this process, and return its result, or a `Block` with what it raised."""
    try:
        func, args, kwargs, key, setup, timeout, _ = pickle.loads(blob)
        env = ENVS.borrow(key, setup, timeout) if key is not None else {}
        result = bind(func, env, kwargs, len(args))(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a future carries its call's exception to `result()`
        # in words first: its frames stay here
        return Block(stop=failure_of(error, NoItem(""), 1, ""), error=error.with_traceback(None))
    return result


class _Host(Work):
    def __init__(self, config: ParallelConfig, wanted: Any, before: _Host | None) -> None:
        super().__init__(())
        self.total = None
        self.config, self.wanted = config, wanted
        self.lock = threading.Lock()
        self.ended = False
        self._until = float("inf")  # when it is over without a call; it waits for the first one
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._futures: dict[int, tuple[Future[Any], str]] = {}
        self._n = 0
        # here: what is wrong with it is an error of the call
        self._client: Any = None if without_dask(config) else start_client(config)
        self._thread = threading.Thread(
            target=self._serve, args=(before,), name="parallel-submit", daemon=True
        )
        if self._client is not None:  # the server of other processes ends them with this one
            atexit.register(self.end_with_program)  # after Dask's own, to be called before that
        self._thread.start()

    def submit(self, blob: bytes, text: str) -> Future[Any]:
        future: Future[Any] = Future()
        _UNANSWERED.add(future)
        future.add_done_callback(_UNANSWERED.discard)
        place, self._n = self._n, self._n + 1
        self._futures[place] = future, text
        self._waiting.append((place, blob))
        self.wake()
        return future

    @property
    def left(self) -> float:
        return 0.0

    @property
    def empty(self) -> bool:
        if self._waiting or self.returned or self.suspects:
            return False
        with self.lock:  # where it is over, no further call is taken
            self.ended = self.ended or (not self._futures and time.monotonic() >= self._until)
            return self.ended

    def take(self, units: float, most: int, slots: int = 1) -> Chunk | None:
        if self.returned:
            return heapq.heappop(self.returned)
        while self._waiting:
            place, blob = self._waiting.popleft()
            with self.lock:
                if self._futures[place][0].set_running_or_notify_cancel():  # it cannot be cancelled any more
                    return Chunk(place, [blob])
                self._drop(place)
        return None

    def _drop(self, place: int) -> None:
        del self._futures[place]
        self._until = time.monotonic() + _LINGER

    def _serve(self, before: _Host | None) -> None:
        spec = RunSpec(one=run_call, policy=Policy(on_error="record"))
        if before is not None and before.ended and self._client is None:
            before._thread.join()
        try:
            with self._client or nullcontext():
                for chunk, block in outcomes(spec, self, self._client, self.config, killable=True):
                    for place, value in enumerate(block.values, chunk.start):
                        self._settle(place, value, block.worker)
        except BaseException as error:  # the futures carry it
            with self.lock:
                self.ended = True
                left, self._futures = list(self._futures.values()), {}
            for future, _ in left:
                if future.running() or future.set_running_or_notify_cancel():
                    future.set_exception(error)
        atexit.unregister(self.end_with_program)

    def _settle(self, place: int, value: Any, worker: str) -> None:
        with self.lock:
            future, text = self._futures[place]
            self._drop(place)
        if isinstance(value, Block):
            error = value.take_error()
            # a failed setup is the same for all calls
            if not isinstance(error, WorkerSetupError) and value.stop is not None:
                add_note(error, f"in the call {text}, {place_of(worker)}")
                show_remote(error, value.stop)
            future.set_exception(error)
        elif isinstance(value, ItemFailure):  # its process died with it, or its result cannot travel
            failure = replace(value, index=NoItem(f"the call {text}"))
            future.set_exception(item_error(RuntimeError(value.message), failure))
        else:
            future.set_result(value)

    def end_with_program(self) -> None:
        if self._futures:
            self._client.espnet3_abort()
        else:  # the cluster is being closed
            self._thread.join()


class _Hosts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host: _Host | None = None

    def submit(self, config: ParallelConfig, spec: RunSpec, args: tuple[Any, ...]) -> Future[Any]:
        """Run a call on the workers of a configuration, which the unfinished calls share."""
        text = call_text(spec.one, args, spec.kwargs)
        key = setup_key(spec.setup)
        try:
            call = spec.one, args, spec.kwargs, key, spec.setup, config.setup_timeout
            blob = pickling.dumps((*call, pickling.MainNames()))
        except ANYTHING as error:
            say_where(error, f"the call {text} cannot be sent to a worker")
            raise
        wanted = wanted_by(config) if without_dask(config) else config
        with self._lock:
            while True:
                host = self._host
                if host is None or host.ended or host.wanted != wanted:
                    host = self._host = _Host(config, wanted, host)
                with host.lock:
                    if not host.ended:
                        return host.submit(blob, text)

    def forget(self) -> None:
        self._lock, self._host = threading.Lock(), None
        for future in list(_UNANSWERED):  # a child never hears of their end
            Future.__init__(future)  # a thread that is not there any more may have held its lock
            future.set_exception(
                NoWorkersError(
                    "this call was submitted by the process that this one was forked from, which alone will hear "
                    "of its end: wait for it before the fork, or submit it here"
                )
            )


HOSTS = _Hosts()
os.register_at_fork(after_in_child=HOSTS.forget)
