"""Every listener of every env that starts here: who opens it, where, and what it answers to another account.

The table on the page of backends has the same rows.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map, set_parallel
from espnet3.parallel.testing import standin
from tests.parallel.clusters.ssh_server import ssh_server
from tests.parallel.clusters.stranger import Stranger, stranger
from tests.parallel.detached.work import Provider, Squares, held, hold, let_go, shut

PAGE = Path(__file__).resolve().parents[3] / "docs/backends.md"
ON_SCHEDULER = {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "10m"}
ON_HOSTS = {
    "scheduler_options": {"host": "127.0.0.1", "port": 0},
    "worker_options": {"host": "127.0.0.1", "nthreads": 1},
}
MARK = "ESPNET3_TEST_MARK"  # a variable that every process of a run inherits
ACCEPTS = 0x10000  # the flag of a unix socket that listens, in /proc/net/unix


class Listener(NamedTuple):
    """A socket that waits for connections: (host, port) or a path."""

    address: Any

    @property
    def is_path(self) -> bool:
        """Whether it is a unix socket."""
        return isinstance(self.address, str)


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """Have all processes that start from here on carry a variable of their own."""
    os.environ[MARK] = uuid.uuid4().hex
    yield os.environ[MARK]
    del os.environ[MARK]


@pytest.fixture(scope="module")
def other() -> Iterator[Stranger]:
    """Start the other account; as an ordinary user, somebody who holds nothing of the run."""
    with stranger() as process:
        yield process


@pytest.fixture(scope="module")
def connect(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Serve SSH on this machine."""
    with ssh_server(tmp_path_factory.mktemp("ssh")) as options:
        yield options


@pytest.fixture(autouse=True)
def _unset() -> Iterator[None]:
    yield
    set_parallel(None)


def listeners(mark: str) -> set[Listener]:
    """Return what this process, and those that carry the mark, listen on."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {row[7] for row in rows if len(row) > 7 and int(row[3], 16) & ACCEPTS}
    found = set()
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) != mark:
                continue
            opened = process.net_connections("all")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for one in opened:
            if isinstance(one.laddr, str) and one.laddr in paths:
                found.add(Listener(one.laddr))
            elif one.status == psutil.CONN_LISTEN:
                found.add(Listener((one.laddr.ip, one.laddr.port)))
    return found


def named(client: Any) -> dict[int, str]:
    """Return what the cluster itself says of its ports."""
    info = client.scheduler_info(n_workers=-1)
    names = {
        port_of(client.scheduler.address): "scheduler",
        info["services"]["dashboard"]: "scheduler's pages",
    }
    for address, worker in info["workers"].items():
        names |= {port_of(address): "worker", worker["services"]["dashboard"]: "worker's pages"}
        if worker["nanny"]:
            names[port_of(worker["nanny"])] = "nanny"
    return names


def port_of(address: str) -> int:
    """Return the port of an address of Dask's; 0 where it has none."""
    found = re.search(r":(\d+)$", address)
    return int(found[1]) if found else 0


def answers(other: Stranger, listener: Listener) -> str:
    """Return what a listener answers to the other account, whatever it tries."""
    if listener.is_path:
        folder = os.stat(os.path.dirname(listener.address))
        assert folder.st_mode & 0o777 == 0o700 and folder.st_uid == os.getuid()
        if other.is_other:
            assert other("unix", listener.address) == "refused: PermissionError"
        return "cannot be reached"
    host, port = listener.address
    assert host.startswith("127.")
    tries = {
        **{f"dask {scheme}": other("dask", f"{scheme}://{host}:{port}") for scheme in ("tcp", "tls")},
        **{
            f"page {scheme}": other("page", f"{scheme}://{host}:{port}/info/main/workers.html")
            for scheme in ("http", "https")
        },
    }
    assert not [each for each in tries.values() if each.startswith("let in")], tries
    return "refuses the page" if tries["page http"] == "403" else "refuses the connection"


@contextmanager
def local(tmp_path: Path, **options: Any) -> Iterator[Any]:
    """Open workers of this machine."""
    with get_client({"env": "local", "n_workers": 2, "options": options}) as client:
        yield client


@contextmanager
def on_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Open jobs of a stand-in for PBS, with a nanny each."""
    monkeypatch.chdir(tmp_path)
    options = {**ON_SCHEDULER, "nanny": True}
    with standin("pbs"), get_client({"env": "pbs", "n_workers": 2, "options": options}) as client:
        yield client


@contextmanager
def over_ssh(connect: dict[str, Any]) -> Iterator[Any]:
    """Open workers over SSH."""
    options = {"hosts": ["127.0.0.1", "127.0.0.2"], "connect_options": connect, **ON_HOSTS}
    with get_client({"env": "ssh", "n_workers": 2, "start_timeout": 60, "options": options}) as client:
        yield client


def on_the_page() -> set[tuple[str, str, str]]:
    """Return the rows of the page's table of listeners: env, who, and what a stranger gets."""
    rows = set()
    for line in PAGE.read_text(encoding="utf-8").split("### Listeners")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            envs, who, _, answer = cells
            rows |= {(env.strip("` "), who, answer) for env in envs.split(",")}
    return rows


@pytest.mark.parametrize("env", ["local", "pbs", "ssh"])
def test_no_listener_of_a_cluster_serves_another_account(
    env: str,
    mark: str,
    other: Stranger,
    connect: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scheduler, workers, nannies, their pages and the driver's own socket answer nothing; the page lists them all."""
    start: dict[str, Callable[[], Any]] = {
        "local": lambda: local(tmp_path),
        "pbs": lambda: on_pbs(tmp_path, monkeypatch),
        "ssh": lambda: over_ssh(connect),
    }
    before = listeners(mark)
    with start[env]() as client:
        client.wait_for_workers(2, timeout=120)
        assert parallel_map(abs, range(20)) == list(range(20))
        names = named(client)
        table = set()
        for listener in listeners(mark) - before:
            who = "driver's socket" if listener.is_path else names[listener.address[1]]
            table.add((env, who, answers(other, listener)))
    assert table == {row for row in on_the_page() if row[0] == env}


def test_workers_that_are_threads_listen_for_pages_alone(mark: str, other: Stranger, tmp_path: Path) -> None:
    """A cluster inside this process has no port but those of its pages, which ask for the secret."""
    before = listeners(mark)
    with local(tmp_path, processes=False):
        assert parallel_map(abs, range(20)) == list(range(20))
        opened = listeners(mark) - before
        said = sorted(answers(other, each) for each in opened)
    assert said == ["cannot be reached", *["refuses the page"] * (len(opened) - 1)]


@pytest.mark.parametrize("env", ["local", "pbs"])
def test_a_detached_run_has_no_listener(
    env: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that nobody waits for listen nowhere while they work, and neither does what supervises them."""
    monkeypatch.chdir(tmp_path)
    hold(tmp_path, 0)
    with ExitStack() as stack:
        options = {"cores": 1, "memory": "1GB", "walltime": "10m"}
        if env == "pbs":
            stack.enter_context(standin("pbs"))
        set_parallel(
            {
                "env": env,
                "n_workers": 2,
                "detached": {"shards": 2},
                "options": options if env == "pbs" else {},
            }
        )
        before = listeners(mark)
        run = Squares(
            Provider({"folder": str(tmp_path)}),
            async_mode=True,
            progress=False,
            output_dir=tmp_path / "run",
            async_specs_dir=tmp_path / "specs",
        )(range(4))
        stack.callback(shut, run)
        job = held(tmp_path, 0)
        assert psutil.Process(job).environ()[MARK] == mark  # its listeners would be found
        assert listeners(mark) == before
        let_go(tmp_path, 0)
        assert run.wait(60).done


@pytest.mark.parametrize("env", ["local", "pbs"])
def test_security_off_opens_what_the_warning_names(
    env: str,
    other: Stranger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without security the other account is let in by the scheduler, and the warning names code and accounts."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        options = {}
        if env == "pbs":
            stack.enter_context(standin("pbs"))
            options = ON_SCHEDULER
        block = {"env": env, "n_workers": 2, "security": "off", "options": options}
        client = stack.enter_context(get_client(block))
        assert other("dask", client.scheduler.address).startswith("let in")
    assert "every other account there included, can run code as you" in caplog.text
