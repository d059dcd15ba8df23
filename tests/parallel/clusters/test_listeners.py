"""Every listener of every env that starts here: who opens it, where, and what it answers to another account.

The table on the page of backends has the same rows.
"""

import http.client
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map, set_parallel
from tests.habits import rows
from tests.parallel.clusters.listening import Listener, listeners_of, named, on_the_page, tries_at, verdict
from tests.parallel.clusters.ssh_server import ssh_server
from tests.parallel.clusters.stranger import Stranger, stranger
from tests.parallel.detached.work import Provider, Squares, held, hold, let_go, shut
from tests.standins import standin

ON_SCHEDULER = {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "10m"}
ON_HOSTS = {
    "scheduler_options": {"host": "127.0.0.1", "port": 0},
    "worker_options": {"host": "127.0.0.1", "nthreads": 1},
}
MARK = "ESPNET3_TEST_MARK"  # a variable that every process of a run inherits


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
    with ssh_server(tmp_path_factory.mktemp("ssh")) as options:
        yield options


def listeners(mark: str) -> set[Listener]:
    """Return what this process, and those that carry the mark, listen on."""

    def marked() -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.pid == os.getpid() or process.environ().get(MARK) == mark:
                    yield process

    return listeners_of(marked())


def answers(other: Stranger, opened: set[Listener]) -> dict[Listener, str]:
    """Return what listeners answer to the other account, whatever it tries."""
    tries = [
        (listener, name, one)
        for listener in opened
        for name, one in tries_at(listener).items()
        if other.is_other or name != "unix"
    ]
    said: dict[Listener, dict[str, str]] = {listener: {} for listener in opened}
    for (listener, name, _), answer in zip(tries, other.at_once([one for *_, one in tries]), strict=True):
        said[listener][name] = answer
    return {listener: verdict(listener, said[listener], other.is_other) for listener in opened}


@contextmanager
def local(**options: Any) -> Iterator[Any]:
    with get_client({"env": "local", "n_workers": 1, "options": options}) as client:
        yield client


@contextmanager
def on_pbs() -> Iterator[Any]:
    options = {**ON_SCHEDULER, "nanny": True}
    with standin("pbs"), get_client({"env": "pbs", "n_workers": 1, "options": options}) as client:
        yield client


@contextmanager
def over_ssh(connect: dict[str, Any]) -> Iterator[Any]:
    options = {"hosts": ["127.0.0.1", "127.0.0.2"], "connect_options": connect, **ON_HOSTS}
    with get_client({"env": "ssh", "n_workers": 1, "start_timeout": 600, "options": options}) as client:
        yield client


@pytest.mark.parametrize("env", rows(["local", "pbs", "ssh"], ("local", "pbs")))
def test_no_listener_of_a_cluster_serves_another_account(
    env: str, mark: str, other: Stranger, connect: dict[str, Any]
) -> None:
    """Scheduler, workers, nannies, their pages and the driver's own socket answer nothing; the page lists them all."""
    start: dict[str, Callable[[], Any]] = {"local": local, "pbs": on_pbs, "ssh": lambda: over_ssh(connect)}
    before = listeners(mark)
    with start[env]() as client:
        client.wait_for_workers(1, timeout=600)
        assert parallel_map(abs, range(20)) == list(range(20))
        names = named(client)
        table = set()
        for listener, answer in answers(other, listeners(mark) - before).items():
            who = "driver's socket" if listener.is_path else names[listener.address[1]]
            table.add((env, who, answer))
    assert table == {row for row in on_the_page() if row[0] == env}


def test_workers_that_are_threads_listen_for_pages_alone(mark: str, other: Stranger) -> None:
    """A cluster inside this process has no port but those of its pages, which ask for the secret."""
    before = listeners(mark)
    with local(processes=False):
        assert parallel_map(abs, range(20)) == list(range(20))
        said = sorted(answers(other, listeners(mark) - before).values())
    assert said == ["cannot be reached", *["refuses the page"] * (len(said) - 1)]


def test_the_link_of_a_run_opens_its_pages() -> None:
    """The link leads to the same page without the secret, which stays as a cookie; nothing else opens the pages."""
    with local() as client:
        link = urlsplit(client.dashboard_link)

        def get(target: str, cookie: str = "") -> http.client.HTTPResponse:
            with closing(http.client.HTTPConnection(str(link.hostname), link.port)) as line:
                line.request("GET", target, headers={"Cookie": cookie})
                answer = line.getresponse()
                answer.read()
                return answer

        shown = get(f"{link.path}?{link.query}&n=1")
        assert (shown.status, shown.headers["Location"]) == (303, f"{link.path}?n=1")
        assert get(link.path, shown.headers["Set-Cookie"].partition(";")[0]).status not in (303, 403)
        assert get(link.path).status == get(f"{link.path}?token=no", "a=b").status == 403


@pytest.mark.parametrize("env", rows(["local", "pbs"], ("local",)))
def test_a_detached_run_has_no_listener(env: str, mark: str, tmp_path: Path) -> None:
    """Jobs that nobody waits for listen nowhere while they work, and neither does what supervises them."""
    hold(tmp_path, 0)
    with ExitStack() as stack:
        options = {}
        if env == "pbs":
            stack.enter_context(standin("pbs"))
            options = {"cores": 1, "memory": "1GB", "walltime": "10m"}
        set_parallel({"env": env, "n_workers": 2, "detached": {"shards": 2}, "options": options})
        before = listeners(mark)
        folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
        run = Squares(Provider({"folder": str(tmp_path)}), **folders, async_mode=True, progress=False)(
            range(4)
        )
        stack.callback(shut, run)
        job = held(tmp_path, 0)
        assert psutil.Process(job).environ()[MARK] == mark  # its listeners would be found
        assert listeners(mark) == before
        let_go(tmp_path, 0)
        assert run.wait(600).done


@pytest.mark.parametrize("env", rows(["local", "pbs"], ("local",)))
def test_security_off_opens_what_the_warning_names(
    env: str, other: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    """Without security the other account is let in by the scheduler, and the warning names code and accounts."""
    with ExitStack() as stack:
        options = {}
        if env == "pbs":
            stack.enter_context(standin("pbs"))
            options = ON_SCHEDULER
        block = {"env": env, "n_workers": 2, "security": "off", "options": options}
        client = stack.enter_context(get_client(block))
        assert other("dask", client.scheduler.address).startswith("let in")
    assert "every other account there included, can run code as you" in caplog.text
