"""Drivers that die, meet each other, or find no room: seen from outside, in programs of their own."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from espnet3_parallel.main import main
from tests.habits import rows
from tests.parallel.durable.work import calls
from tests.parallel.ledger.making import receipt_of
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
DRIVER = Path(__file__).with_name("driver.py")


def start(
    folder: Path, n: int, workers: int, most_bytes: int = 0, runner: str = "Squares"
) -> subprocess.Popen[str]:
    """Start a driver; no file it writes may grow beyond so many bytes, as a quota would have it."""
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder), str(n), str(workers), str(most_bytes), runner],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def lines_on_disk(folder: Path) -> int:
    """Return how many outcomes the splits hold."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("run/split.*/results.jsonl"))


def wait_for_lines(folder: Path, n: int, driver: subprocess.Popen[str]) -> None:
    """Wait until so many outcomes are on disk; a file gives no event that all systems know."""

    def are_there() -> bool:
        assert driver.poll() is None, driver.communicate()[1]
        return lines_on_disk(folder) >= n

    wait_until(are_there, every=0.001)


@pytest.mark.parametrize("workers", rows([1, 2], (2,)))
def test_a_killed_driver_of_100_000_items_repeats_few(workers: int, tmp_path: Path) -> None:
    """After kill -9 at some moment the next start says what is left and repeats under 1 %."""
    n = 100_000
    with start(tmp_path, n, workers) as driver:
        wait_for_lines(tmp_path, random.Random(workers).randrange(1, n // 2), driver)
        driver.kill()
    with start(tmp_path, n, workers) as driver:
        said = driver.communicate()[1]
    assert driver.returncode == 0, said
    assert "resuming: " in said
    called = calls(tmp_path / "log")
    assert len(called) == n
    assert called.total() - n < n // 100
    assert receipt_of(tmp_path / "run").ok == n


@pytest.mark.parametrize("workers", rows([1, 2], (2,)))
def test_items_over_ten_milliseconds_are_on_disk_one_by_one(workers: int, tmp_path: Path) -> None:
    """Each is on disk before the next one in its process ends: a killed driver costs a worker two at most."""
    n = 150
    with start(tmp_path, n, workers, runner="KeptSquares") as driver:
        wait_for_lines(tmp_path, n // 2, driver)
        driver.kill()
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("log.*")]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    with start(tmp_path, n, workers, runner="KeptSquares") as driver:
        said = driver.communicate()[1]
    assert driver.returncode == 0, said
    called = calls(tmp_path / "log")
    assert len(called) == n
    assert called.total() - n <= 2 * workers


def test_of_two_drivers_at_once_one_runs(tmp_path: Path) -> None:
    """While one driver is at work on a folder a second one is refused with the first one's process and host."""
    n = 50_000
    with start(tmp_path, n, 1) as first:
        wait_for_lines(tmp_path, 1, first)
        first.send_signal(signal.SIGSTOP)  # it stays at work until the second one has tried
        with start(tmp_path, n, 1) as second:
            refused = second.communicate()[1]
        first.send_signal(signal.SIGCONT)
        said = first.communicate()[1]
    assert (first.returncode, second.returncode) == (0, 1), said
    assert "FolderInUseError" in refused
    assert re.search(rf"process {first.pid} on .* since 20", refused)
    assert calls(tmp_path / "log").total() == n


@pytest.mark.parametrize("how", ["raise", "kill"])
@pytest.mark.parametrize("runner", ["MergesAsTold", "WritesAsTold"])
def test_a_run_is_complete_once_its_last_hook_has_returned(runner: str, how: str, tmp_path: Path) -> None:
    """While `merge` or `write_outputs` raised or was killed a run is not complete; the same call runs it again."""
    run = str(tmp_path / "run")
    for after in (None, "before"):  # a new run, and one that was complete before
        (tmp_path / "end").write_text(how)
        with start(tmp_path, 20, 1, runner=runner) as driver:
            said = driver.communicate()[1]
        assert driver.returncode == (1 if how == "raise" else -signal.SIGKILL), said
        assert how == "kill" or "the same call goes on with the merge" in said
        assert receipt_of(tmp_path / "run").ok == 20, after  # the results can be read
        for verb in ("status", "wait", "watch"):
            done = CliRunner().invoke(main, [verb, run])
            assert done.exit_code == 1, done.output
        waited = " ".join(CliRunner().invoke(main, ["wait", run]).output.split())
        assert "the same call of the runner merges it" in waited and "has failed, or was stopped" in waited
        told = CliRunner().invoke(main, ["report", run, "--json"]).output
        assert (
            "20 of 20 items have an outcome, and no process works on it" in told and "To merge them" in told
        )
        with start(tmp_path, 20, 1, runner=runner) as driver:
            said = driver.communicate()[1]
        assert driver.returncode == 0, said
        assert CliRunner().invoke(main, ["wait", run]).exit_code == 0
    assert calls(tmp_path / "log").total() == 20


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    """Where no more can be written the error names the folder; with room again the run goes on."""
    n = 20_000
    with start(tmp_path, n, 2, 500_000) as driver:
        said = driver.communicate()[1]
    assert driver.returncode == 1
    assert "FolderWriteError" in said
    assert str(tmp_path / "run") in said
    assert "; free space" in said
    before = lines_on_disk(tmp_path)
    assert 0 < before < n
    called = calls(tmp_path / "log").total()
    with start(tmp_path, n, 1) as driver:
        said = driver.communicate()[1]
    assert driver.returncode == 0, said
    assert f"{before:,} done" in said
    assert calls(tmp_path / "log").total() - called == n - before
    assert receipt_of(tmp_path / "run").ok == n
