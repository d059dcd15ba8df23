"""What Dask's packages do not document stands in `dask_compat` alone, and is there in the installed versions."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import logging
import re
import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from distributed import Scheduler
from tornado.iostream import IOStream

from espnet3.parallel.backends.table import BACKENDS
from espnet3.parallel.dask_compat import SEEN, is_failed_broadcast, is_lost_connection

ROOT = Path(__file__).resolve().parents[2]
COMPAT = sorted((ROOT / "espnet3" / "parallel" / "dask_compat").glob("*.py"))
FILES = [
    path for top in ("espnet3", "egs3") for path in sorted((ROOT / top).rglob("*.py")) if path not in COMPAT
]

THEIRS = {
    "asyncssh",
    "cloudpickle",
    "dask",
    "dask_cuda",
    "dask_jobqueue",
    "dask_kubernetes",
    "distributed",
    "tornado",
}

# What other files may import: names that these packages' documentation describes.
DOCUMENTED = {
    "asyncssh",
    "cloudpickle",
    "dask",
    "dask.config",
    "dask.utils.parse_bytes",
    "dask_kubernetes.operator.make_cluster_spec",
    "distributed",
    "distributed.Client",
    "distributed.LocalCluster",
    "distributed.Nanny",
    "distributed.Security",
    "distributed.Worker",
    "distributed.WorkerPlugin",
    "distributed.core.Status",
    "distributed.default_client",
    "distributed.deploy.adaptive.Adaptive",
    "distributed.deploy.spec.ProcessInterface",
    "distributed.deploy.spec.SpecCluster",
    "distributed.diagnostics.plugin.SchedulerPlugin",
    "distributed.get_worker",
    "distributed.scheduler.KilledWorker",
    "tornado.httputil.HTTPHeaders",
    "tornado.httputil.HTTPMessageDelegate",
    "tornado.httputil.HTTPServerConnectionDelegate",
    "tornado.httputil.HTTPServerRequest",
    "tornado.httputil.ResponseStartLine",
    "distributed.worker",  # the fork server loads it, and uses nothing of it
}

BY_NAME = ("getattr", "setattr", "hasattr", "delattr")

# Private names of the standard library, for which its own documentation or nothing else would do.
STANDARD = {
    "atexit._run_exitfuncs",
    "functools._lru_cache_wrapper",
    "os._exit",
    "subprocess._args_from_interpreter_flags",
    "sys._current_frames",
}

# Undocumented names without an underscore: (end of what stands before the dot, name).
UNDOCUMENTED = {
    ("", "__tornado_coroutine__"),
    ("", "asyncio_loop"),
    ("", "get_connection_args"),
    ("", "get_listen_args"),
    ("", "global_config"),
    ("", "http_server"),
    ("", "new_spec"),
    ("", "new_worker_spec"),
    ("", "periodic_callbacks"),
    ("", "request_callback"),
    ("", "start_http_server"),
    ("config", "defaults"),
    ("loop", "handlers"),
    ("scheduler", "remove_worker"),
    ("scheduler", "tasks"),
    ("state", "nthreads"),
    ("worker", "plugins"),
}

# Where each name of dask_compat is found without starting anything: package, and "module:attribute.attribute".
STATIC = [
    ("cloudpickle", "cloudpickle:Pickler.dispatch_table"),
    ("cloudpickle", "cloudpickle:Pickler.reducer_override"),
    ("dask", "dask.config:defaults"),
    ("dask", "dask.config:global_config"),
    ("dask", "dask.config:serialize"),
    ("dask-jobqueue", "dask_jobqueue.core:JobQueueCluster._get_worker_security"),
    ("dask-jobqueue", "dask_jobqueue.core:Job._call"),
    ("dask-jobqueue", "dask_jobqueue.core:Job._submit_job"),
    ("dask-jobqueue", "dask_jobqueue.core:JobQueueCluster._dummy_job"),
    ("dask-kubernetes", "dask_kubernetes.operator.kubecluster.kubecluster:CreateMode"),
    ("dask-kubernetes", "dask_kubernetes.operator.kubecluster.kubecluster:KubeCluster._scale"),
    ("dask-kubernetes", "dask_kubernetes.operator.kubecluster.kubecluster:KubeCluster._start"),
    ("distributed", "distributed.cli.dask_spec:main"),
    ("distributed", "distributed.cli.dask_worker:main.params"),
    ("distributed", "distributed.client:_current_client.get"),
    ("distributed", "distributed.client:_current_client.set"),
    ("distributed", "distributed.comm.tcp:TLSListener._prepare_stream"),
    ("tornado", "tornado.tcpserver:add_accept_handler"),
    ("distributed", "distributed.core:error_message"),
    ("distributed", "distributed.client:Client._close"),
    ("distributed", "distributed.deploy.cluster:Cluster._close"),
    ("distributed", "distributed.deploy.cluster:Cluster._update_worker_status"),
    ("distributed", "distributed.deploy.spec:SpecCluster._close"),
    ("distributed", "distributed.deploy.spec:SpecCluster._correct_state"),
    ("distributed", "distributed.deploy.spec:SpecCluster._instances.discard"),
    ("distributed", "distributed.deploy.spec:SpecCluster._update_worker_status"),
    ("distributed", "distributed.deploy.spec:SpecCluster.new_worker_spec"),
    ("distributed", "distributed.scheduler:Scheduler.remove_worker"),
    ("distributed", "distributed.security:Security.get_connection_args"),
    ("distributed", "distributed.security:Security.get_listen_args"),
    ("distributed", "distributed.nanny:get_mp_context"),
    ("distributed", "distributed.node:ServerNode.start_http_server"),
    ("distributed", "distributed.utils:format_dashboard_link"),
]

# And those that only an object has, of a cluster of threads, of its worker, or of a batch job that is never submitted.
LIVE: list[tuple[str, str, Callable[[Any], object]]] = [
    ("distributed", "Cluster._loop_runner.stop", lambda it: it.cluster._loop_runner.stop),
    ("distributed", "SpecCluster._i", lambda it: it.cluster._i + 1),
    ("distributed", "SpecCluster.new_spec", lambda it: it.cluster.new_spec["options"]),
    ("distributed", "Scheduler.tasks", lambda it: len(it.cluster.scheduler.tasks)),
    ("distributed", "Scheduler.http_server", lambda it: it.cluster.scheduler.http_server.stop),
    ("tornado", "HTTPServer.request_callback", lambda it: it.worker.http_server.request_callback.on_close),
    (
        "tornado",
        "HTTPServer.conn_params.header_timeout",
        lambda it: it.worker.http_server.conn_params.header_timeout + 1,
    ),
    ("distributed", "Worker.plugins", lambda it: it.worker.plugins.values),
    ("distributed", "Worker.state.nthreads", lambda it: it.worker.state.nthreads + 1),
    ("distributed", "Worker.nanny", lambda it: it.worker.nanny),
    ("distributed", "Worker heartbeats", lambda it: it.worker.periodic_callbacks["heartbeat"].callback),
    (
        "tornado",
        "PeriodicCallback.callback_time",
        lambda it: it.worker.periodic_callbacks["heartbeat"].callback_time + 1,
    ),
    ("tornado", "IOLoop.asyncio_loop", lambda it: it.cluster.loop.asyncio_loop.set_exception_handler),
    ("tornado", "BaseAsyncIOLoop.handlers", lambda it: len(it.cluster.loop.handlers) + 1),
    ("tornado", "IOLoop.asyncio_loop._thread_id", lambda it: it.cluster.loop.asyncio_loop._thread_id + 1),
    ("dask-jobqueue", "Job._job_script_prologue", lambda it: it.job._job_script_prologue),
    ("dask-jobqueue", "Job.worker_processes", lambda it: it.job.worker_processes + 1),
]


# --- alone -----------------------------------------------------------------------------------------


@functools.cache
def trees() -> list[tuple[str, ast.AST]]:
    """Return every other file of the package, and what it says."""
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in FILES
    ]


@functools.cache
def our_names() -> set[str]:
    """Return every private name that this package gives to something of its own."""
    found = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return {name for name in found if is_private(name)} - private_names_touched()


@functools.cache
def private_names_touched() -> set[str]:
    """Return the private names that dask_compat touches."""
    nodes = [node for path in COMPAT for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            named = node.args[1]
            found |= {ast.literal_eval(named)} if isinstance(named, ast.Constant) else set()
    return {name for name in found if is_private(name)}


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def breaches(where: str, tree: ast.AST, ours: set[str]) -> list[str]:
    """Return the lines of a file that touch what only dask_compat may."""
    found = []
    touched = private_names_touched()
    undocumented = {name for _, name in UNDOCUMENTED}
    own = {id(node) for each in ast.walk(tree) if without_bases(each) for node in own_uses(each)}
    for node in ast.walk(tree):
        found += [
            f"{where}:{getattr(node, 'lineno', 0)}: imports {name}"
            for name in imported(node)
            if name.split(".")[0] in THEIRS and name not in DOCUMENTED
        ]
        if isinstance(node, ast.Attribute):
            name = node.attr
            foreign = is_private(name) and name not in ours
            if not foreign and name not in undocumented:
                continue
            of = ast.unparse(node.value)
            hidden = foreign and f"{of}.{name}" not in STANDARD and id(node) not in own
            if hidden or any(of.endswith(end) and name == known for end, known in UNDOCUMENTED):
                found.append(f"{where}:{node.lineno}: {of}.{name}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            named = node.args[1] if len(node.args) > 1 else None
            if isinstance(named, ast.Constant) and is_private(str(named.value)) and named.value not in ours:
                found.append(f"{where}:{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ClassDef) and not without_bases(node):
            names = methods(node)
            found += [f"{where}:{node.lineno}: overrides {name}" for name in names if name in touched]
    return found


def without_bases(node: ast.AST) -> bool:
    """Whether it is a class that derives from nothing, whose methods are then its own, whatever they are called."""
    return isinstance(node, ast.ClassDef) and not node.bases


def methods(node: ast.AST) -> list[str]:
    """Return the names of a class's methods."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def own_uses(node: ast.AST) -> list[ast.AST]:
    """Return where a class uses methods of its own."""
    names = methods(node)
    return [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and each.attr in names
        and ast.unparse(each.value) in ("self", "cls")
    ]


def imported(node: ast.AST) -> list[str]:
    """Return the full names that an import statement brings, and the module that `import_module` is given."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
    return []


def test_undocumented_names_stand_in_one_file() -> None:
    """No file but dask_compat touches a private or undocumented name of Dask's packages, cloudpickle or asyncssh."""
    ours = our_names()
    found = [line for where, tree in trees() for line in breaches(where, tree, ours)]
    assert not found, "these belong in espnet3/parallel/dask_compat:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from distributed.client import _get_global_client",
        "from distributed.comm.tcp import TCP",
        "import distributed.comm",
        "module = import_module('distributed.dashboard.scheduler')",
        "cluster._supports_scaling = True",
        "cluster._close()",
        "getattr(client, '_periodic_callbacks', None)",
        "loop = cluster.loop.asyncio_loop",
        "n = len(client.cluster.scheduler.tasks)",
        "class C(SpecCluster):\n    async def _close(self): pass",
        "class C(SpecCluster):\n    def start(self): return self._created",
    ],
)
def test_a_name_elsewhere_is_found(line: str) -> None:
    """The search finds each way in which such a name could come into another file."""
    assert breaches("elsewhere.py", ast.parse(line), our_names())


def test_no_private_name_of_ours_hides_one_of_theirs() -> None:
    """A class of ours that derives from one of Dask's gives none of its private names to something else."""
    hidden = []
    for cls in derived():
        chain = [
            each for each in cls.__mro__ if not each.__module__.startswith("espnet3.parallel.dask_compat")
        ]
        theirs = {
            name for each in chain if each.__module__.split(".")[0] in THEIRS for name in names_of(each)
        }
        mine = {name for each in chain if each.__module__.startswith("espnet3.") for name in names_of(each)}
        hidden += [f"{cls.__module__}.{cls.__name__}.{name}" for name in sorted(mine & theirs)]
    assert hidden == []


def names_of(cls: type) -> set[str]:
    """Return the private names that a class gives to its methods, and in them to its objects."""
    try:
        source = inspect.getsource(cls)
    except OSError:  # one that is made in a function, and renamed
        source = ""
    named = set(re.findall(r"^ +self\.(_\w+)(?:: .*)? = ", source, re.MULTILINE))
    return {name for name in named | set(vars(cls)) if is_private(name)} - {"_abc_impl"}


def derived() -> Iterator[type]:
    """Yield our classes that derive from Dask's, one of each scheduler's too."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if "espnet3/parallel/" in path.as_posix() and any(f"\nfrom {name}" in text for name in THEIRS):
            module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            yield from (
                each
                for each in vars(module).values()
                if isinstance(each, type) and each.__module__ == module.__name__
            )
    if installed("dask-jobqueue"):
        from espnet3.parallel.clusters.job_cluster import watched_cluster

        for row in BACKENDS.values():
            if row.scheduler is not None:
                cluster = watched_cluster(row)
                yield from (cluster, cluster.job_cls)


# --- there -----------------------------------------------------------------------------------------


def installed(package: str) -> str | None:
    """Return the installed version of a package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def touch(package: str, name: str, get: Callable[[], object]) -> None:
    """Get something of a package; where it is not there, fail with the name and the version."""
    there = installed(package)
    if there is None:
        pytest.skip(f"{package} is not installed")
    try:
        get()
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        pytest.fail(
            f"{package} {there} no longer has {name} ({error}), which espnet3/parallel/dask_compat uses as it was "
            f"in {SEEN[package]}: see what took its place, and change it there"
        )


def resolve(path: str) -> object:
    """Return what "module:attribute.attribute" names."""
    module, _, attributes = path.partition(":")
    found: Any = import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("package", "path"), STATIC, ids=[path for _, path in STATIC])
def test_the_installed_version_has_it(package: str, path: str) -> None:
    """Each name that dask_compat uses is there in the installed version."""
    touch(package, path, lambda: resolve(path))


class Alive:
    """A cluster of one thread, its worker, and a batch job that is never submitted."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        (self.worker,) = cluster.workers.values()

    @property
    def job(self) -> Any:
        """A job of Slurm's."""
        from dask_jobqueue import SLURMCluster

        return SLURMCluster.job_cls(scheduler="tcp://none", name="job", cores=1, memory="1GB")


@pytest.fixture(scope="module")
def alive() -> Iterator[Alive]:
    """Start what the names of LIVE are read from."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
        silence_logs=logging.ERROR,
    ) as cluster:
        yield Alive(cluster)


@pytest.mark.parametrize(("package", "name", "get"), LIVE, ids=[name for _, name, _ in LIVE])
def test_an_object_of_the_installed_version_has_it(
    alive: Alive, package: str, name: str, get: Callable[[Alive], object]
) -> None:
    """Each name that dask_compat uses, and that only an object has, is there in the installed version."""
    touch(package, name, lambda: get(alive))


def test_every_private_name_is_touched() -> None:
    """No private name that dask_compat uses is missing from the two lists above."""
    listed = {part for _, path in STATIC for part in path.partition(":")[2].split(".")}
    listed |= {part for _, name, _ in LIVE for part in name.split(".")}
    listed.add("_session")  # of kr8s; tests/parallel/kube would leave connections open
    listed.add("_job_kwargs")  # of a whole cluster of jobs; test_the_options_of_jobs reads it
    assert private_names_touched() - listed == set()


def test_a_name_that_is_gone_is_named_with_its_version() -> None:
    """The message of a name that is gone holds the package, its version, the name and the version that had it."""
    with pytest.raises(pytest.fail.Exception) as caught:
        touch("distributed", "distributed.client:_gone", lambda: resolve("distributed.client:_gone"))
    message = str(caught.value)
    assert f"distributed {installed('distributed')} no longer has distributed.client:_gone" in message
    assert SEEN["distributed"] in message


def test_the_options_of_jobs() -> None:
    """Of a cluster of batch jobs, the processes of a job and the folder of its logs can be read."""
    pytest.importorskip("dask_jobqueue")
    from dask_jobqueue import SLURMCluster

    from espnet3.parallel.dask_compat.clusters import log_folder_of, options_of_next_jobs, processes_per_job

    async def read() -> None:
        async with SLURMCluster(
            cores=2,
            processes=2,
            memory="1GB",
            log_directory=".",
            asynchronous=True,
            scheduler_options={"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"},
        ) as cluster:
            assert processes_per_job(cluster) == 2
            assert log_folder_of(cluster) == "."
            assert options_of_next_jobs(cluster)["cores"] == 2

    asyncio.run(read())


def test_the_words_of_a_connection_that_is_lost_before_its_handshake() -> None:
    """Of a worker that goes as the scheduler begins TLS with it, tornado says what `is_lost_connection` knows."""

    async def begun() -> None:
        here, there = socket.socketpair()
        with there:
            stream = IOStream(here)
            stream.close()
            await stream.start_tls(server_side=False)

    with pytest.raises(ValueError, match="not idle") as caught:
        asyncio.run(begun())
    assert is_lost_connection(caught.value)
    assert not is_lost_connection(ValueError("of a plugin"))


def test_the_words_of_a_failed_broadcast() -> None:
    """What a scheduler logs about a worker that a broadcast did not reach is known by its first words."""

    async def logged() -> list[logging.LogRecord]:
        async with Scheduler(
            port=0, dashboard=False, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as scheduler:
            with pytest.raises(OSError, match="tcp:"):
                await scheduler.broadcast(msg={"op": "nothing"}, workers=["tcp://127.0.0.1:1"])
        return records

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("distributed.scheduler")
    before = list(logger.filters)
    logger.filters.clear()  # ours leaves these lines out
    logger.addHandler(handler)
    try:
        found = asyncio.run(logged())
    finally:
        logger.removeHandler(handler)
        logger.filters[:] = before
    assert any(is_failed_broadcast(record) for record in found), [record.getMessage() for record in found]
