"""What Dask's packages do not document stands in `dask_compat` alone, and is there in the installed versions."""

import ast
import asyncio
import functools
import socket
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from tornado.iostream import IOStream

from espnet3.parallel.backends.backend import interrupts_wait
from espnet3.parallel.dask_compat import is_lost_connection

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
    "dask_kubernetes.operator.kubecluster.kubecluster.CreateMode",
    "dask_kubernetes.operator.make_cluster_spec",
    "distributed",
    "distributed.Client",
    "distributed.LocalCluster",
    "distributed.Nanny",
    "distributed.Security",
    "distributed.Worker",
    "distributed.WorkerPlugin",
    "distributed.core.Status",
    "distributed.deploy.spec.ProcessInterface",
    "distributed.deploy.spec.SpecCluster",
    "distributed.diagnostics.plugin.SchedulerPlugin",
    "distributed.get_worker",
    "distributed.scheduler.KilledWorker",
    "tornado.httputil.HTTPMessageDelegate",
    "tornado.httputil.HTTPServerRequest",
    "tornado.httputil.url_concat",
    "tornado.routing.Router",
    "tornado.web.Application",
    "tornado.web.RequestHandler",
    "distributed.worker",  # the fork server loads it, and uses nothing of it
}

# Private names of the standard library, for which its own documentation or nothing else would do.
STANDARD = {
    "atexit._run_exitfuncs",
    "functools._lru_cache_wrapper",
    "os._exit",
    "subprocess._args_from_interpreter_flags",
    "sys._current_frames",
}

# Where each name of dask_compat is found without starting anything: package, and "module:attribute.attribute".
STATIC = [
    ("cloudpickle", "cloudpickle:Pickler.dispatch_table"),
    ("cloudpickle", "cloudpickle:Pickler.reducer_override"),
    ("dask", "dask.config:global_config"),
    ("dask", "dask.config:serialize"),
    ("dask-kubernetes", "dask_kubernetes.operator.kubecluster.kubecluster:KubeCluster._start"),
    ("distributed", "distributed.cli.dask_spec:main"),
    ("distributed", "distributed.cli.dask_worker:main.params"),
    ("distributed", "distributed.comm.tcp:TLSListener._prepare_stream"),
    ("tornado", "tornado.tcpserver:add_accept_handler"),
    ("distributed", "distributed.core:error_message"),
    ("distributed", "distributed.client:Client._close"),
    ("distributed", "distributed.deploy.cluster:Cluster._close"),
    ("distributed", "distributed.deploy.cluster:Cluster._update_worker_status"),
    ("distributed", "distributed.deploy.spec:SpecCluster._close"),
    ("distributed", "distributed.deploy.spec:SpecCluster._update_worker_status"),
    ("distributed", "distributed.node:ServerNode.start_http_server"),
]


# --- alone -----------------------------------------------------------------------------------------


@functools.cache
def trees() -> list[tuple[str, ast.AST]]:
    """Return every other file of the package, and its syntax tree."""
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
    return {name for name in found if is_private(name)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def breaches(where: str, tree: ast.AST) -> list[str]:
    """Return the lines of a file that touch what only dask_compat may."""
    found = []
    for node in ast.walk(tree):
        found += [
            f"{where}:{getattr(node, 'lineno', 0)}: imports {name}"
            for name in imported(node)
            if name.split(".")[0] in THEIRS and name not in DOCUMENTED
        ]
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in our_names():
            touched = ast.unparse(node)
            if touched not in STANDARD:
                found.append(f"{where}:{node.lineno}: {touched}")
    return found


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
    found = [line for where, tree in trees() for line in breaches(where, tree)]
    assert not found, "these belong in espnet3/parallel/dask_compat:\n" + "\n".join(found)


# --- there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "path"), STATIC, ids=[path for _, path in STATIC])
def test_the_installed_version_has_it(package: str, path: str) -> None:
    """Each name that dask_compat uses of a module or class is there in the installed version, or is named."""
    try:
        there = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    module, _, attributes = path.partition(":")
    try:
        with interrupts_wait():  # which keeps the handler of Ctrl-C
            found: Any = import_module(module)
        for name in attributes.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(
            f"{package} {there} no longer has {path} ({error}), which espnet3/parallel/dask_compat uses: see what took "
            "its place, and change it there"
        )


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
