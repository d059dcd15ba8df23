"""Worker processes and their server killed from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest

from espnet3.parallel import BaseRunner, ParallelError, get_client, parallel_for, parallel_map, set_parallel
from tests.parallel.faults.watching import TWO, Mailbox, acting, nothing_left, servers_of, workers_of
from tests.parallel.faults.workloads import (
    DiesLate,
    DyingProvider,
    Gated,
    Provider,
    SlowGated,
    TwoGates,
    announce_50,
    pid_of,
)

N = 1000
SQUARES = [i * i for i in range(N)]


@contextmanager
def killer(mailbox: Mailbox, *groups: int) -> Iterator[None]:
    """Kill, from outside, the workers that stand at a gate: first `groups[0]` of them at once, and so on."""

    def kill() -> None:
        for size in groups:
            for pid in mailbox.take(size):
                psutil.Process(int(pid)).kill()

    with acting(kill):
        yield


def gated(cls: type[BaseRunner], folder: Path, *gates: int) -> BaseRunner:
    """Return a runner some of whose items wait to be killed."""
    return cls(Provider({"gates": gates, "root": str(folder)}), progress=False)


def test_both_workers_at_once(folder: Path, mailbox: Mailbox) -> None:
    """All workers killed at the same time: they are replaced and all results come."""
    set_parallel(TWO)
    runner = gated(TwoGates, folder, 300, 600)
    with nothing_left(), killer(mailbox, 2):
        assert runner(range(N)) == SQUARES
    assert runner.summary.deaths == 2


def test_five_times_in_one_run(folder: Path, mailbox: Mailbox) -> None:
    """A worker killed five times during one run, at different items, costs nothing: all results, and no item blamed."""
    set_parallel(TWO)
    # a millisecond each, and far apart: one run of 50 ms never holds two of them
    runner = gated(SlowGated, folder, *range(150, 900, 150))
    with nothing_left(), killer(mailbox, 1, 1, 1, 1, 1):
        assert runner(range(N)) == SQUARES
    assert (runner.summary.deaths, runner.summary.retries, runner.summary.failed) == (5, 0, 0)


def test_between_two_calls() -> None:
    """Workers killed while idle, between two calls on one client, one or all of them, cost nothing."""
    with nothing_left(), get_client(TWO):
        before = set(parallel_map(pid_of, range(50)))
        for process in workers_of():
            process.kill()
        after = set(parallel_map(pid_of, range(50)))
        assert not before & after
        workers_of()[0].kill()
        assert sorted(parallel_for(abs, range(100))) == list(range(100))


def test_a_provider_that_kills_its_worker(mailbox: Mailbox) -> None:
    """A process that ends while it builds the env is a clear error after a few tries, not a crash loop."""
    set_parallel({**TWO, "start_timeout": 600})
    with nothing_left(), pytest.raises(ParallelError, match=r"(?s)env.*(exited with code 3|died|ended)"):
        Gated(DyingProvider({"mail": mailbox.path}), progress=False)(range(10))
    mailbox.take()
    assert mailbox.pending() <= 8


def test_a_worker_that_ends_late_in_its_setup(folder: Path) -> None:
    """Another one is waited for anew, though the env has taken longer than `start_timeout` by then."""
    set_parallel({**TWO, "start_timeout": 8})
    with nothing_left():
        assert Gated(DiesLate({"root": str(folder)}), progress=False)(range(1)) == [0]


def killed_at_start(times: int, folder: Path) -> dict[str, list[str]]:
    """Return Dask settings with which so many processes that start as workers are killed."""
    code = (
        "import os, signal, tempfile\n"
        f"if len(os.listdir({str(folder)!r})) < {times}:\n"
        f"    tempfile.mkstemp(dir={str(folder)!r})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    return {"distributed.worker.preload": [code]}


def test_workers_killed_at_their_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed while it starts is started again; after a few tries the error says how it ended."""
    # Dask writes what it preloads to a file, and does not come to remove it
    monkeypatch.setenv("TMPDIR", str(folder))
    killed = folder / "killed"
    killed.mkdir()
    with nothing_left(), dask.config.set(killed_at_start(2, killed)), get_client(TWO) as client:
        assert parallel_map(abs, range(-10, 0), client=client) == list(range(10, 0, -1))
    assert len(list(killed.iterdir())) >= 2
    with (
        nothing_left(),
        dask.config.set(killed_at_start(1000, killed)),
        pytest.raises(RuntimeError, match="its process was killed by SIGKILL while it was starting"),
        get_client(TWO),
    ):
        pass


@pytest.mark.parametrize(("workers_too", "idle"), [(True, True), (False, False)])
def test_the_fork_server(workers_too: bool, idle: bool, folder: Path, mailbox: Mailbox) -> None:
    """The fork server killed, alone or with its workers: the run ends, well or clearly, and nothing is left."""
    set_parallel({**TWO, "start_timeout": 5})

    def kill() -> None:
        killed = [*servers_of(), *(workers_of() if workers_too else ())]
        for process in killed:
            process.kill()

    with nothing_left(), get_client():
        parallel_map(abs, range(10))
        if idle:
            kill()
            ends_well_or_clearly(folder)
        else:
            with acting(lambda: mailbox.take() and kill()):
                ends_well_or_clearly(folder)


def ends_well_or_clearly(folder: Path) -> None:
    """Run items; they all have their results, or there is one error that speaks of workers."""
    error = ""
    try:
        results = parallel_map(announce_50, range(100), root=str(folder))
    except ParallelError as caught:
        error = str(caught)
    assert "worker" in error if error else results == list(range(100))
