"""Programs that are signalled or killed while they run: `python drivers.py NAME FOLDER ...`.

They are scripts without a `__main__` guard worth the name: workers never import this file.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    get_client,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.parallel.faults.signs import tell

# an option of Dask's own takes the way over its cluster
OF_DASK = {"dashboard_address": "127.0.0.1:0"} if os.environ.get("FAULTS_WAY") == "dask" else {}
TWO = {"env": "local", "n_workers": 2, "options": {"processes": "THREADS" not in os.environ, **OF_DASK}}


# --- what items do -----------------------------------------------------------------------------------


def naps() -> None:
    """Sleep in short naps: a signal that comes just before a `time.sleep` is only seen after it."""
    while True:
        time.sleep(0.05)


def sleeps(x: int, root: str) -> int:
    tell(f"{root}/mail", f"item {os.getpid()}")
    naps()
    return x


def starts_a_program(x: int, root: str) -> int:
    with subprocess.Popen(["sleep", "100"]) as child:
        tell(f"{root}/mail", f"item {child.pid}")
    return x


def forks(x: int, root: str) -> int:
    """Wait for a fork of its own, which holds all that the worker holds."""
    child = os.fork()
    if child == 0:
        time.sleep(100)
        os._exit(0)
    tell(f"{root}/mail", f"item {child}")
    os.waitpid(child, 0)
    return x


ITEMS: dict[str, Callable[..., int]] = {f.__name__: f for f in (sleeps, starts_a_program, forks)}


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        env = dict(self.config)
        if env.pop("slow", False):
            tell(f"{env['root']}/mail", f"item {os.getpid()}")
            time.sleep(100)
        return env


class Runner(BaseRunner):
    @staticmethod
    def forward(idx: int, root: str, item: str) -> int:
        return ITEMS[item](idx, root)


# --- what drivers do -----------------------------------------------------------------------------------


def runner(root: str, item: str = "sleeps", n_workers: str = "2") -> None:
    set_parallel({**TWO, "n_workers": int(n_workers)})
    with get_client(TWO) if "THREADS" in os.environ else nullcontext():
        Runner(Provider({"root": root, "item": item}))(range(10))


def files(root: str) -> None:

    class Files(Runner):
        @staticmethod
        def open_writers(shard_dir: Any, **_: Any) -> Any:
            return shard_dir

    set_parallel(TWO)
    Files(Provider({"root": root, "item": "sleeps"}), output_dir=f"{root}/out")(range(10))


def env_build(root: str, n_workers: str = "2") -> None:
    set_parallel({**TWO, "n_workers": int(n_workers)})
    Runner(Provider({"root": root, "item": "sleeps", "slow": True}))(range(10))


def forked_beside(root: str, scheduler: str = "") -> None:
    """Run in an open client, beside a child that this process has forked and that holds all its sockets."""
    jobs = {"env": scheduler, "n_workers": 1, "options": {"cores": 1, "memory": "1GB"}}
    with get_client(jobs if scheduler else TWO):
        parallel_map(abs, range(10))
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        tell(f"{root}/mail", f"child {child}")
        parallel_map(sleeps, range(10), root=root)


def loop_body(root: str) -> None:
    set_parallel(TWO)
    for x in parallel_for(abs, itertools.count()):
        sleeps(x, root)


def stops(root: str) -> None:
    """Close a client; the test interrupts it at some moment."""
    with get_client(TWO):
        parallel_map(abs, range(10))
        tell(f"{root}/mail", "stopping")
    naps()


def starts_and_stops(root: str) -> None:
    """Start and stop clusters; the test interrupts it at some moment."""
    set_parallel(TWO)
    tell(f"{root}/mail", "starting")
    for _ in range(1000):
        parallel_map(abs, range(4))


if __name__ == "__main__":
    # a shell starts what runs in the background with SIGINT ignored, and that is inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        globals()[sys.argv[1]](*sys.argv[2:])
    except KeyboardInterrupt:
        if "UNCAUGHT" in os.environ:
            raise
        print("interrupted")
        sys.exit(130)
