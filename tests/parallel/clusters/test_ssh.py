"""`env: ssh` reads its hosts in one way, whether a driver waits or a detached run is submitted."""

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, MissingPackageError, get_client, parallel_map, set_parallel
from espnet3.parallel.backends.backend import pip_line
from espnet3.parallel.backends.machine import ssh_hosts, worker_hosts
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import NoWorkersError
from tests.parallel.clusters.ssh_server import HOSTS, ssh_server
from tests.parallel.detached.work import Provider, Squares

COMMON = {
    "scheduler_options": {"host": "127.0.0.1", "port": 0},
    "worker_options": {"host": "127.0.0.1", "nthreads": 1},
}


ROOT = Path(__file__).resolve().parents[3]


def square(x: int) -> int:
    return x * x


def with_driver(options: dict[str, Any], folder: Path) -> list[int]:
    """Square four numbers on workers of this process, once both are there."""
    block = {"env": "ssh", "n_workers": 2, "start_timeout": 600, "options": {**options, **COMMON}}
    with get_client(block) as client:
        client.wait_for_workers(2, timeout=600)
        return parallel_map(square, range(4))


def detached(options: dict[str, Any], folder: Path) -> list[int]:
    """Square four numbers in jobs of their own."""
    set_parallel({"env": "ssh", "n_workers": 2, "options": options, "detached": {"shards": 2}})
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    run = Squares(Provider({"folder": str(folder)}), **folders, async_mode=True, progress=False)(range(4))
    status = run.wait(600)
    assert status.done, (status, dict(run.logs()))
    return [each["square"] for each in run.merge()]


Mode = Callable[[dict[str, Any], Path], list[int]]
MATRIX = pytest.mark.matrix
BOTH = pytest.mark.parametrize("mode", [with_driver, detached])


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as options:
        yield options


def pythons(folder: Path, n: int) -> list[str]:
    """Make interpreters that note their own names and search path when they are started."""
    made = []
    for number in range(n):
        path = folder / f"python {number}"
        noted = shlex.quote(str(folder / f"started.{number}"))
        path.write_text(
            f'#!/bin/sh\nprintf %s "$PYTHONPATH" > {noted}\nexec {shlex.quote(sys.executable)} "$@"\n'
        )
        path.chmod(0o700)
        made.append(str(path))
    return made


def started(folder: Path) -> set[str]:
    """Return which of them were started."""
    return {path.name for path in folder.glob("started.*")}


@pytest.mark.parametrize(
    ("mode", "listed"),
    [
        (with_driver, False),
        pytest.param(with_driver, True, marks=MATRIX),
        pytest.param(detached, False, marks=MATRIX),
        pytest.param(detached, True, marks=MATRIX),
    ],
)
def test_one_value_holds_for_all_hosts(
    mode: Mode, listed: bool, connect: dict[str, Any], tmp_path: Path
) -> None:
    """One value of connect_options and remote_python, or a list of one, is used for every host in either mode."""
    python = pythons(tmp_path, 1)
    one = {"connect_options": connect, "remote_python": python[0]}
    listing = {"connect_options": [connect], "remote_python": python}
    assert mode({"hosts": HOSTS, **(listing if listed else one)}, tmp_path) == [0, 1, 4, 9]
    assert started(tmp_path) == {"started.0"}
    assert str(ROOT) in (tmp_path / "started.0").read_text().split(":")


@pytest.mark.parametrize("mode", [pytest.param(with_driver, marks=MATRIX), detached])
def test_a_list_gives_each_host_its_own(mode: Mode, connect: dict[str, Any], tmp_path: Path) -> None:
    """Lists as long as hosts are read in the order of hosts: every host that is used starts its own Python."""
    own = [{**connect, "keepalive_interval": 10 + number} for number in range(3)]
    options = {"hosts": HOSTS, "connect_options": own, "remote_python": pythons(tmp_path, 3)}
    assert mode(options, tmp_path) == [0, 1, 4, 9]
    scheduler = {"started.0"} if mode is with_driver else set()
    assert started(tmp_path) == {"started.1", "started.2", *scheduler}


@BOTH
def test_a_missing_asyncssh_is_a_missing_package(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without asyncssh both modes raise the same error, which names the extra to install."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)  # the import system's own "not installed"
    with pytest.raises(MissingPackageError) as caught:
        mode({"hosts": ["127.0.0.1"]}, tmp_path)
    assert caught.value.name == "asyncssh"
    assert pip_line("ssh") in str(caught.value)
    assert not (tmp_path / "run").exists()


@BOTH
def test_a_host_that_is_not_reached_is_named_with_the_reason(
    mode: Mode, connect: dict[str, Any], tmp_path: Path
) -> None:
    """Both modes say the host, the port and the options to look at, where nothing listens."""
    options = {"hosts": ["127.0.0.1", "127.0.0.2"], "connect_options": {**connect, "port": 9}}
    with pytest.raises(
        NoWorkersError, match=r"127.0.0.\d: .*no connection to port 9: .*connect_options.port"
    ):
        mode(options, tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"connect_options": [{"port": 1}, {"port": 2}]}, "the list has 2 entries for 3 hosts"),
        ({"connect_options": [{"port": 1}, 2, 3]}, "must be a mapping, or a list with one for each host"),
        ({"remote_python": 3}, "must be the path of a Python"),
        ({"hosts": ["a", 3]}, "must be a list of host names"),
    ],
)
def test_what_does_not_fit_the_hosts_is_refused_with_the_block(options: dict[str, Any], reason: str) -> None:
    """Wrong lengths and kinds are found when the block is registered, before either mode does anything."""
    with pytest.raises(ConfigError) as caught:
        ParallelConfig.parse({"env": "ssh", "options": {"hosts": ["a", "b", "c"], **options}})
    assert reason in str(caught.value)


def test_a_single_host_is_also_the_one_with_workers() -> None:
    """The first of several hosts gets no workers; one alone gets them."""
    alone = ssh_hosts({"hosts": ["a"], "remote_python": None})
    assert worker_hosts(alone) == alone
    assert [host.name for host in worker_hosts(ssh_hosts({"hosts": ["a", "b", "c"]}))] == ["b", "c"]
