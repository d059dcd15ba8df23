"""`parallel_submit` on a client; without one, on a cluster that lives while there are futures to fill."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.env.calls import EnvCall, setup_key
from espnet3.parallel.env.store import SetupFn
from espnet3.parallel.pilots.forks import OwnFuture
from espnet3.parallel.runner.execute import start_client


def submit_call(
    client: Any,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setup: SetupFn | None,
    setup_timeout: float | None,
) -> Any:
    """Submit a call as a Dask task."""
    from distributed import Client

    from espnet3.parallel.pilots.dask.pools import check_client

    check_client(client)
    key = setup_key(setup)
    # what Dask's own `submit` would take for itself travels with the function
    options = inspect.signature(Client.submit).parameters
    given = {name: value for name, value in kwargs.items() if name in options}
    rest = {name: value for name, value in kwargs.items() if name not in options}
    return client.submit(EnvCall(func, key, setup, setup_timeout, given), *args, pure=False, **rest)


class _Background:
    """One cluster, opened for the first call and closed when its last future is done."""

    def __init__(self, config: ParallelConfig) -> None:
        self.config = config
        self.pid = os.getpid()
        self.client: Any = start_client(config)
        self.open = 0

    def close(self) -> None:
        self.client.close()


_lock = threading.Lock()
_current: _Background | None = None


def submit_in_background(
    config: ParallelConfig,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setup: SetupFn | None,
) -> Future[Any]:
    """Run a call on a cluster that is shared by the unfinished calls of the same configuration."""
    global _current
    with _lock:
        host = _current
        if host is None or host.config is not config or host.pid != os.getpid():  # of the parent of this fork
            host = _current = _Background(config)
        host.open += 1
    future: Future[Any] = OwnFuture()
    future.set_running_or_notify_cancel()
    try:
        remote = submit_call(host.client, func, args, kwargs, setup, config.setup_timeout)
    except BaseException:  # something of it cannot be pickled, or Ctrl-C
        _release(host)
        raise

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
def _kill_at_exit() -> None:
    """Kill the workers of calls that nobody waits for any more."""
    host = _current
    if host is not None:
        from espnet3.parallel.clusters.client import abort

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
