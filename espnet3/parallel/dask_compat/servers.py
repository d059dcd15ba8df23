"""What Dask does not document of its servers, schedulers, workers and nannies: their TLS, their pages, their queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tls_to_listen(security: Any, role: str) -> Any:
    """Return the SSL context by which a role ("client", "worker", ...) of a cluster listens.

    `Security.get_listen_args`.
    """
    return security.get_listen_args(role)["ssl_context"]


def tls_to_connect(security: Any, role: str) -> Any:
    """Return the SSL context by which a role of a cluster connects: `Security.get_connection_args`."""
    return security.get_connection_args(role)["ssl_context"]


def ask_for_certificate(server: Any) -> None:
    """Have the HTTP server of a scheduler or worker ask for the run's certificate; stop it if that fails.

    `http_server` and `security` of both, and `nanny`, which only a worker has.
    """
    role = "worker" if hasattr(server, "nanny") else "scheduler"
    try:
        server.http_server.ssl_options = tls_to_listen(server.security, role)
    except BaseException:
        server.http_server.stop()  # Dask goes on after a preload that fails
        raise


def guarded(server_class: Any, guard: Callable[[Any], None]) -> Any:
    """Return a subclass of a scheduler's or worker's class whose HTTP server is guarded before it takes a request.

    `ServerNode.start_http_server`, of both.
    """

    class Guarded(server_class):  # type: ignore[misc]  # of a class that is known when it runs
        def start_http_server(self, *args: Any, **kwargs: Any) -> None:
            super().start_http_server(*args, **kwargs)
            guard(self)

    Guarded.__name__ = Guarded.__qualname__ = server_class.__name__  # Dask reports and compares it
    return Guarded


def put_before_pages(server: Any, make: Callable[[Any], Any]) -> None:
    """Have a scheduler's or worker's HTTP requests answered by what `make` returns for the one that has answered them.

    `request_callback` of tornado's `HTTPServer`, read for each request.
    """
    server.http_server.request_callback = make(server.http_server.request_callback)


def replace_queues_of_nannies(make: Callable[[Any], Any]) -> None:
    """Have the nannies of this process speak to their workers through other queues than those of multiprocessing.

    `distributed.nanny.get_mp_context`, whose `Queue` is called for each new process of a worker.
    """
    from distributed import nanny

    module: Any = nanny
    context = module.get_mp_context

    class Context:
        def __getattr__(self, name: str) -> Any:
            return getattr(context(), name)

        def Queue(self) -> Any:  # noqa: N802  # the name that it takes the place of
            return make(context())

    module.get_mp_context = Context


async def kill_starting_worker(nanny: Any) -> None:
    """Kill the worker of a nanny, if it has not come up.

    `Nanny.process`, a `WorkerProcess` with a `status`, whose own `process` is an `AsyncProcess`.
    """
    from distributed.core import Status

    worker = nanny.process
    if worker is not None and worker.status is Status.starting and worker.process is not None:
        await worker.process.kill()


def nannies_without_main() -> None:
    """Have nannies of this process start workers that do not import the caller's main module, from now on.

    `multiprocessing.spawn` would: a script without a main guard then starts its cluster once more in each worker, a
    program from stdin has no file to import, and workers never come. They need nothing of it: what the user's main
    module defines travels by value. `multiprocessing.spawn.get_preparation_data` gets the name of the process, which
    `distributed.nanny.WorkerProcess` calls "Dask Worker process (from Nanny)".
    """
    from multiprocessing import spawn

    original = spawn.get_preparation_data
    if getattr(original, "espnet3_without_main", False):
        return

    def prepared(name: str) -> dict[str, Any]:
        data = original(name)
        if name.startswith("Dask Worker process"):
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    prepared.espnet3_without_main = True  # type: ignore[attr-defined]  # a mark, read above
    spawn.get_preparation_data = prepared
