"""A driver that is killed takes its workers, and what they started, with it."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.parallel.faults.watching import PATIENCE, Driver, Mailbox, family
from tests.standins import standin
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("scene", "item", "number"),
    [
        ("runner", ["forks"], signal.SIGKILL),
        ("runner", ["starts_a_program"], signal.SIGTERM),
        ("env_build", [], signal.SIGKILL),
    ],
)
def test_in_the_middle_of_a_run(
    scene: str, item: list[str], number: int, folder: Path, mailbox: Mailbox
) -> None:
    """Whatever items do, or while envs are built, no process or folder of a killed driver is left within seconds."""
    driver = Driver(folder, scene, folder, *item)
    mailbox.take(2)
    assert len(family()) >= 4  # driver, server, two workers
    driver.signal(number)
    assert driver.end() == -number
    assert driver.survivors() == [] and driver.folders() == []


def test_with_a_forked_child_that_lives_on(folder: Path, mailbox: Mailbox) -> None:
    """A child that the driver forked, and that holds its sockets open, keeps neither workers nor folders."""
    driver = Driver(folder, "forked_beside", folder)
    child = int(mailbox.take(1)[0].split()[1])
    mailbox.take(2)
    driver.signal(signal.SIGKILL)
    assert driver.end() == -signal.SIGKILL
    others = [process for process in family() if process.pid != child]
    _, alive = psutil.wait_procs(others, timeout=PATIENCE)
    assert alive == [] and driver.folders() == []
    assert [process.pid for process in family()] == [child]
    os.kill(child, signal.SIGKILL)


def test_jobs_of_a_scheduler(folder: Path, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a killed driver end in the middle of an item, also while a forked child of the driver lives on."""
    monkeypatch.chdir(folder)
    with standin("pbs") as queue:
        driver = Driver(folder, "forked_beside", folder, "pbs")
        child = int(mailbox.take(1)[0].split()[1])
        mailbox.take()
        driver.signal(signal.SIGKILL)
        assert driver.end() == -signal.SIGKILL
        wait_until(lambda: not queue.unfinished())
        os.kill(child, signal.SIGKILL)  # it has lived on
