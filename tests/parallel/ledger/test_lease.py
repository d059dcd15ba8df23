"""One driver at a time, with real processes."""

import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import FolderInUseError, LeaseLostError
from espnet3.parallel.ledger.files import create_whole
from espnet3.parallel.ledger.lease import Lease, is_alive, process_start, this_process
from tests.parallel.ledger.programs import heard, program, tell

ROUNDS = 40
DRIVERS = 4


def held_by(file: Path, **facts: object) -> Path:
    """Write the lease of a holder who is not this process."""
    file.write_text(json.dumps({"run_id": "r", "since": "2024-01-01", **this_process(), **facts}))
    return file


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("dead", [False, True], ids=["fresh", "after a dead one"])
def test_of_several_drivers_that_start_together_exactly_one_wins(tmp_path: Path, dead: bool) -> None:
    """In every round one process gets the lease, and the error of the others names that process."""
    gone = dead_pid()
    with ExitStack() as stack:
        drivers = [stack.enter_context(program("contend")) for _ in range(DRIVERS)]
        assert {heard(driver) for driver in drivers} == {"ready"}
        for number in range(ROUNDS):
            folder = tmp_path / str(number // 2)  # each twice: also after a lease that was given back
            folder.mkdir(exist_ok=True)
            if dead:
                highest = max([int(f.name.split(".")[1]) for f in folder.glob("lease.*.json")], default=0)
                held_by(folder / f"lease.{highest + 1}.json", pid=gone)
            for driver in drivers:
                tell(driver, folder)
            said = [heard(driver) for driver in drivers]
            won = [line.split()[1] for line in said if line.startswith("won ")]
            assert len(won) == 1, said
            assert sum(f"process {won[0]} on " in line for line in said) == DRIVERS - 1, said
            for driver in drivers:
                tell(driver, "go on")
            assert {heard(driver) for driver in drivers} == {"released"}


def test_a_thread_is_refused_from_the_moment_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread that looks as soon as the lease's file exists does not take its holder for a dead one."""
    refused: list[str] = []

    def create_then_look(file: Path, content: bytes) -> None:
        create_whole(file, content)
        monkeypatch.setattr(files, "create_whole", create_whole)
        other = threading.Thread(target=look)
        other.start()
        other.join()

    def look() -> None:
        try:
            Lease(tmp_path).acquire("second")
        except FolderInUseError as error:
            refused.append(str(error))

    monkeypatch.setattr(files, "create_whole", create_then_look)
    first = Lease(tmp_path)
    first.acquire("first")
    try:
        assert len(refused) == 1 and "(run first)" in refused[0]
    finally:
        first.release()


def test_a_zombie_is_dead() -> None:
    """A killed process that was not waited for holds nothing."""
    process = subprocess.Popen(["sleep", "60"])
    who = {**this_process(), "pid": process.pid, "process_start": process_start(process.pid)}
    assert is_alive(who) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
    assert is_alive(who) is False
    process.wait()
    assert is_alive(who) is False


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    """A living process with the dead holder's number does not hold its lease."""
    held_by(tmp_path / "lease.1.json", pid=os.getppid(), process_start=1)
    lease = Lease(tmp_path)
    lease.acquire("second")
    lease.release()


def test_whose_process_cannot_be_seen_is_alive_while_it_touches_its_lease(tmp_path: Path) -> None:
    """A holder on another host, of an earlier boot or in another container is judged by its file alone."""
    for other in ({"host": "elsewhere"}, {"boot_id": "earlier"}, {"pid_namespace": "pid:[1]"}):
        held_by(tmp_path / "lease.1.json", pid=dead_pid(), **other)
        with pytest.raises(FolderInUseError):
            Lease(tmp_path).acquire("second")


@pytest.mark.parametrize("hours", [-1, 1, 1000])
def test_another_hosts_lease_is_taken_over_when_it_is_silent(tmp_path: Path, hours: int) -> None:
    """An untouched file that is old, or in the future after a clock jumped back, is free."""
    file = held_by(tmp_path / "lease.1.json", host="elsewhere")
    then = time.time() + 3600 * hours
    os.utime(file, (then, then))
    lease = Lease(tmp_path, beat=0.05)
    lease.acquire("second")
    lease.release()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_jumped_does_not_kill_a_holder(tmp_path: Path, hours: int) -> None:
    """However wrong its times are, a file of another host that keeps being touched keeps its folder."""
    file = held_by(tmp_path / "lease.1.json", host="elsewhere")
    then = time.time() + 3600 * hours
    os.utime(file, (then, then))
    stop = threading.Event()

    def touch() -> None:
        beat = 0
        while not stop.wait(0.01):
            beat += 1
            os.utime(file, (then + beat, then + beat))

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(FolderInUseError, match="on elsewhere"):
            Lease(tmp_path).acquire("second")
    finally:
        stop.set()
        thread.join()


def test_a_damaged_lease_is_judged_by_its_age(tmp_path: Path) -> None:
    """An unreadable lease is in use while it is fresh, and taken over once it is old and silent."""
    file = tmp_path / "lease.1.json"
    file.write_text('{"run_id"')
    with pytest.raises(FolderInUseError, match="unknown"):
        Lease(tmp_path).acquire("second")
    os.utime(file, (1, 1))
    lease = Lease(tmp_path, beat=0.05)
    lease.acquire("second")
    lease.release()


def test_a_driver_that_was_taken_over_stops(tmp_path: Path) -> None:
    """Once a higher lease exists, the old holder's next write is an error; its release changes nothing."""
    lease = Lease(tmp_path, beat=0.01)
    lease.acquire("first")
    lease.check()
    held_by(tmp_path / "lease.2.json")
    thread = lease._thread
    assert thread is not None
    thread.join()  # it ends when it sees the other one
    with pytest.raises(LeaseLostError, match=r"lease\.2\.json"):
        lease.check()
    lease.release()


def test_a_missed_beat_stops_nothing(tmp_path: Path) -> None:
    """While the lease cannot be touched the driver goes on."""
    lease = Lease(tmp_path, beat=0.01)
    lease.acquire("first")
    (tmp_path / "lease.1.json").rename(tmp_path / "away")
    lease._look()  # as each beat does
    lease.check()
    (tmp_path / "away").rename(tmp_path / "lease.1.json")
    lease.check()
    lease.release()


def test_a_copy_of_a_folder_in_use_is_free(tmp_path: Path) -> None:
    """A copy of a living driver's folder can be used; the folder itself cannot, nor under another name."""
    folder, copy, link = tmp_path / "run", tmp_path / "copy", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    with program("die_with_lease", folder) as driver:
        assert heard(driver).startswith("holding ")
        shutil.copytree(folder, copy)
        lease = Lease(copy, beat=0.05)
        lease.acquire("copy")
        lease.release()
        for place in (folder, link):
            with pytest.raises(FolderInUseError):
                Lease(place).acquire("other")
        folder.rename(tmp_path / "moved")
        with pytest.raises(FolderInUseError):
            Lease(tmp_path / "moved").acquire("other")
        driver.kill()
