"""A driver that is killed takes its workers, and what they started, with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.habits import rows
from tests.parallel.faults.watching import PATIENCE, Driver, Mailbox, family
from tests.standins import standin
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("item", "number"),
    [
        ("forks", signal.SIGKILL),
        ("starts_a_program", signal.SIGTERM),
        pytest.param("holds_the_gil", signal.SIGKILL, marks=pytest.mark.matrix),
    ],
)
def test_in_the_middle_of_a_run(item: str, number: int, folder: Path, mailbox: Mailbox) -> None:
    """Whatever its items are doing, no process or folder of a killed driver is left within seconds."""
    driver = Driver(folder, "runner", folder, item)
    mailbox.take(2)
    assert len(family()) >= 4  # driver, server, two workers
    driver.signal(number)
    assert driver.end() == -number
    assert driver.survivors() == [] and driver.folders() == []


@pytest.mark.parametrize(
    ("scene", "number"),
    rows([("env_build", signal.SIGKILL), ("client_body", signal.SIGTERM)], [("env_build", signal.SIGKILL)]),
)
def test_elsewhere(scene: str, number: int, folder: Path, mailbox: Mailbox) -> None:
    """The same while an env is built, and in the body of `get_client`."""
    driver = Driver(folder, scene, folder)
    mailbox.take(2)
    driver.signal(number)
    assert driver.end() == -number
    assert driver.survivors() == [] and driver.folders() == []


@pytest.mark.parametrize("number", rows([signal.SIGKILL, signal.SIGTERM], (signal.SIGKILL,)))
def test_with_a_forked_child_that_lives_on(number: int, folder: Path, mailbox: Mailbox) -> None:
    """A child that the driver forked, and that holds its sockets open, keeps neither workers nor folders."""
    driver = Driver(folder, "forked_beside", folder)
    child = int(mailbox.take(1)[0].split()[1])
    mailbox.take(2)
    driver.signal(number)
    assert driver.end() == -number
    others = [process for process in family() if process.pid != child]
    _, alive = psutil.wait_procs(others, timeout=PATIENCE)
    assert alive == [] and driver.folders() == []
    assert [process.pid for process in family()] == [child]
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("scene", rows(["jobs", "forked_beside_jobs"], ("forked_beside_jobs",)))
def test_jobs_of_a_scheduler(
    scene: str, folder: Path, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of a killed driver end in the middle of an item, also while a forked child of the driver lives on."""
    monkeypatch.chdir(folder)
    with standin("pbs") as queue:
        driver = Driver(folder, scene, folder)
        child = int(mailbox.take(1)[0].split()[1]) if scene != "jobs" else None
        mailbox.take()
        driver.signal(signal.SIGKILL)
        assert driver.end() == -signal.SIGKILL
        wait_until(lambda: not queue.unfinished())
        if child is not None:
            os.kill(child, signal.SIGKILL)  # it has lived on
