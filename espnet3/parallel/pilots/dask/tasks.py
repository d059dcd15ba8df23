"""The fallback where workers cannot connect to the driver: the same chunks as ordinary Dask tasks.

    driver ──channel──> TaskSlots ──task──> run_task ──> a pilot in the worker's process
           <──────────            <── answer ──

The slots are this process's own, so that a run finds them in its pool like any other. A task costs a scheduler's round
trip per chunk (a millisecond or two, against a tenth).
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections import defaultdict
from concurrent.futures import CancelledError
from contextlib import closing, suppress
from functools import partial
from typing import Any

from distributed import get_worker
from distributed.scheduler import KilledWorker

from espnet3.parallel.dask_compat import leave_random_to_items
from espnet3.parallel.pilots.channel import Channel, Mark, Message
from espnet3.parallel.pilots.pool import Pool
from espnet3.parallel.pilots.protocol import Hello, forget, setup_report
from espnet3.parallel.pilots.worker import Pilot, Slots

_READ = 1 << 20  # bytes of an answer that are read at a time
_calls: defaultdict[str, dict[int, Any]] = defaultdict(dict)  # of a worker's process, by pool and run


class _TaskPilot(Pilot):
    end = staticmethod(lambda: None)
    replaced = False  # the process is Dask's worker

    def _on_end(self, run_id: int) -> None:
        """Leave the env to `forget_run`: the next task needs it."""


class _Answer(Channel):
    is_over = False

    def send(self, obj: Any) -> None:
        if obj[0] == "log":
            super().send_message(Message(obj))
        elif obj[0] != "ready":  # the driver has been told
            self.send_message(Message(obj))

    def send_message(self, message: Message) -> None:
        super().send_message(message)
        self.is_over = True
        self._end()

    def close(self) -> None:
        self._end()
        super().close()

    def _end(self) -> None:
        with suppress(OSError):  # the task has what it waits for; a child of an item may hold the socket open
            self.sock.shutdown(socket.SHUT_RDWR)


def run_task(pool: str, run: tuple[Any, ...], chunk: tuple[Any, ...]) -> bytes:
    """Have a pilot in this process run one chunk of items; return its messages as they travel."""
    leave_random_to_items()
    worker, (ours, theirs) = get_worker(), socket.socketpair()
    hello = Hello(str(worker.name), worker.address, os.getpid(), socket.gethostname())
    channel = _Answer(theirs)
    pilot = _TaskPilot(channel, Slots("", pool.encode(), hello), Mark(""))
    pilot.calls = _calls[pool]
    pilot.inbox.extend((run, chunk))
    # in a thread of its own: the task ends when an item is late, and the item may never end
    threading.Thread(target=pilot.serve, name="pilot", daemon=True).start()
    with ours:
        answer = b"".join(iter(partial(ours.recv, _READ), b""))
    if not channel.is_over:
        raise RuntimeError("an item has broken this process beyond use; its standard error says more")
    return answer


async def forget_run(pool: str, run_id: int) -> None:
    """Forget a run in this worker's process (a coroutine: `Client.run` waits for anything else)."""
    if run_id in _calls[pool]:  # else no chunk of it came here
        _, spec = _calls[pool].pop(run_id)
        forget(spec)


class TaskSlots:
    """Slots of a client's pool whose chunks are run by tasks, one for each thread of the client's workers."""

    def __init__(self, client: Any, pool: Pool) -> None:
        self._client = weakref.proxy(client)  # which closes the pool when it goes, and so ends the threads
        self._pool = pool
        self._ended = 0

    def open(self) -> None:
        """Have an idle slot for each thread of the workers."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        for at in range(max(1, sum(worker["nthreads"] for worker in workers))):
            # the scheduler chooses which worker runs a task, and Dask blames a death on every task that the
            # worker had queued: the driver takes all slots for one process, so that a suspect runs all alone
            hello = Hello("a Dask worker", f"{self._pool.name}/{at}", 0, "")
            if all(slot.hello.address != hello.address for slot in list(self._pool.idle)):
                threading.Thread(target=self._slot, args=(hello,), name="pilot", daemon=True).start()

    def _slot(self, hello: Hello) -> None:
        is_open = True
        while is_open:
            ours, theirs = map(Channel, socket.socketpair())
            is_open = self._pool.admit(theirs, hello)
            # it is closed by the driver, a worker was lost, or the client is closed
            with closing(ours), suppress(OSError, KilledWorker, CancelledError, RuntimeError):
                self._carry(ours)

    def _carry(self, channel: Channel) -> None:
        run: tuple[Any, ...] = ()
        while True:
            message = channel.recv()
            if message[0] == "run":
                run = message
                channel.send(("ready", message[1]))
            elif message[0] == "chunk":
                task = self._client.submit(run_task, self._pool.name, run, message, pure=False)
                try:  # waits, too, for one that died and is computed again
                    channel.sock.sendall(task.result())
                except (OSError, KilledWorker, CancelledError):
                    raise
                except Exception as error:  # the worker has no such package, for example
                    channel.send(("setup", message[1], setup_report(error, "a Dask worker")))
            elif message[1] != self._ended:  # every slot is told, and once is enough
                self._ended = message[1]
                with suppress(AttributeError):  # the client is closed: it has no scheduler
                    self._client.run(forget_run, self._pool.name, message[1], wait=False, on_error="ignore")
