"""`parallel_submit` without a client: a cluster that lives as long as there are futures to fill."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.launchers.execute import start_client


class _Background:
    """One cluster, opened for the first call and closed when its last future is done."""

    def __init__(self, config: ParallelConfig) -> None:
        self.config = config
        self.client: Any = start_client(config)
        self.open = 0

    def close(self) -> None:
        self.client.close()


_lock = threading.Lock()
_current: _Background | None = None


def submit_in_background(
    config: ParallelConfig, call: Callable[..., Any], args: tuple[Any, ...]
) -> Future[Any]:
    """Run a call on a cluster that is shared by the unfinished calls of the same configuration.

    Returns:
        A standard future; its cluster closes by itself once no call is left.
    """
    global _current
    with _lock:
        host = _current
        if host is None or host.config is not config:
            host = _current = _Background(config)
        host.open += 1
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    remote = host.client.submit(call, *args, pure=False)

    def finish() -> None:
        try:
            result = remote.result()
        except BaseException as error:  # a future carries its call's exception to `result()`
            _release(host)
            future.set_exception(error)
        else:
            _release(host)
            future.set_result(result)

    # a thread, not a callback: the cluster must not be closed from its own event loop; a daemon, so
    # that Ctrl-C ends the program: calls nobody waits for do not keep it alive
    threading.Thread(target=finish, name="parallel-submit", daemon=True).start()
    return future


@atexit.register
def _abandon() -> None:
    """Kill the workers of calls that nobody waits for any more."""
    host = _current
    if host is not None:
        from espnet3.parallel.launchers.client import abort

        abort(host.client)


def _release(host: _Background) -> None:
    global _current
    with _lock:
        host.open -= 1
        last = host.open == 0
        if last and _current is host:
            _current = None
    if last:
        host.close()
