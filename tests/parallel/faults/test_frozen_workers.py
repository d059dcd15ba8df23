"""Workers that are frozen, and runs that are stopped as a whole and go on: by a suspend, or with their machine."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from espnet3.parallel import get_client, set_parallel
from espnet3.parallel.pilots.losses import SignsOfLife
from espnet3.parallel.pilots.pool import Slot
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.records import Policy
from tests.parallel.detached.work import program
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import Mailbox, nothing_left
from tests.parallel.faults.workloads import freezes, is_quiet

LIMIT = 3.0


def config(n_workers: int) -> dict[str, object]:
    return {
        "env": "local",
        "n_workers": n_workers,
        "frozen_timeout": LIMIT,
        "options": {"threads_per_worker": 1},
    }


def test_a_frozen_worker_is_replaced(
    folder: Path, mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that is stopped within an item is killed, and what it held is done by others; a warning says so."""
    mail = str(folder / "mail")
    with nothing_left(), get_client(config(1)) as client:
        results, tally, _ = run(
            freezes, range(200), Policy(), client, at=70, mail=mail, marker=str(folder / "once")
        )
    assert results == list(range(200)) and tally.deaths == 1
    pid = mailbox.take()[0]
    assert f"(pid {pid} on " in caplog.text
    assert "gives no sign of life for" in caplog.text and "frozen_timeout" in caplog.text


def test_an_item_that_freezes_its_worker_is_named(folder: Path, mailbox: Mailbox) -> None:
    """An item that stops whatever process it is in fails as poison, with the reason; all others have results."""
    set_parallel(config(2))
    results, tally, _ = run(freezes, range(50), Policy("record"), at=7, mail=str(folder / "mail"))
    (failure,) = failures(results)
    assert (failure.index, failure.cause) == (7, "poison")
    assert tally.deaths in (2, 3)  # alone twice, and before that perhaps among neighbours
    assert "gave no sign of life for" in failure.message


def test_a_quiet_item_is_not_taken_for_frozen() -> None:
    """An item that keeps the interpreter's lock for longer than the limit is left in peace."""
    set_parallel(config(2))
    results, tally, _ = run(is_quiet, range(2), Policy(), seconds=1.5 * LIMIT)
    assert results == [0, 1] and tally.deaths == 0


def test_on_another_host_the_scheduler_says_when_it_heard_from_it() -> None:
    """A worker elsewhere is frozen once the scheduler's note of its last heartbeat does not change any more."""
    heard = {"tcp://far:1": 1.0, "tcp://far:2": 1.0}
    slots = {Slot(SimpleNamespace(received=0), Hello(str(n), f"tcp://far:{n}", n, "far")) for n in (1, 2)}
    signs = SignsOfLife(0.0, heard.__getitem__)
    assert signs.frozen(slots) == []
    heard["tcp://far:2"] = 2.0
    assert [slot.hello.worker for slot, _ in signs.frozen(slots)] == ["1"]
    assert {slot.hello.worker for slot, _ in signs.frozen(slots)} == {"1", "2"}
    assert SignsOfLife(None, heard.__getitem__).frozen(slots) == []


# --- runs that are stopped as a whole -------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
from typing import Any
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

def wait_in(folder):
    (folder / "begun").write_text(str(os.getpid()))  # opens when the test reads
    (folder / "go").read_text()  # opens when the test writes

class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        folder = Path(self.config["folder"])
        if self.config["at"] == "env":
            wait_in(folder)
        return {"folder": folder, "at": self.config["at"]}

class Squares(BaseRunner):
    @staticmethod
    def forward(idx: int, folder: Path, at: str) -> int:
        if at == "item" and idx == 0:
            wait_in(folder)
        return idx * idx

if __name__ == "__main__":
    folder, at, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1}})
    limit = {"item_timeout" if at == "item" else "setup_timeout": float(sys.argv[4])}
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(
        Provider({"folder": str(folder), "at": at}), on_error="record", progress=False,
        async_mode=how == "detached", **folders, **limit,
    )
    found = runner(range(4))
    if how == "detached":
        assert found.wait(150).done, (found.status(), dict(found.logs()))
        found = found.merge()
    print(list(found))
"""
LONGER = 4.0  # seconds: long against all that is not the stop, also on a busy machine


def processes_of(program: int, held: int) -> list[psutil.Process]:
    """Return a program, its job and all that belongs to them; those that watch come last."""
    found = [psutil.Process(program), *psutil.Process(program).children(recursive=True)]
    session = psutil.Process(os.getsid(held))
    found += [session, *session.children(recursive=True)]
    return sorted(set(found), key=lambda process: process.pid != held)


@pytest.mark.parametrize(("at", "how"), [("item", "detached"), ("env", "driver")])
def test_time_in_which_all_is_stopped_does_not_count(at: str, how: str, tmp_path: Path) -> None:
    """An item, or an env, is not late because its run was stopped for longer than the limit and then went on."""
    (tmp_path / "program.py").write_text(PROGRAM)
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    with program("program.py", str(tmp_path), at, how, str(LONGER), cwd=tmp_path) as driver:
        stopped = processes_of(driver.pid, int((tmp_path / "begun").read_text()))
        for process in reversed(stopped):
            process.send_signal(signal.SIGSTOP)
        time.sleep(LONGER + 2)  # this time is what the test is about; a driver gives a worker a second more
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        (tmp_path / "go").write_text("go")
        said, _ = driver.communicate(timeout=600)
    assert said == "[0, 1, 4, 9]\n"
