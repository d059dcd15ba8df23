"""A driver that is killed takes its workers, and what they started, with it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.parallel.faults.watching import Driver, Mailbox, family


@pytest.mark.parametrize(
    ("item", "number"),
    [
        ("sleeps", signal.SIGKILL),
        ("holds_the_gil", signal.SIGKILL),
        ("starts_a_program", signal.SIGKILL),
        ("forks", signal.SIGKILL),
        ("holds_the_gil", signal.SIGTERM),
        ("starts_a_program", signal.SIGTERM),
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
    ("scene", "number"), [("env_build", signal.SIGKILL), ("client_body", signal.SIGTERM)]
)
def test_elsewhere(scene: str, number: int, folder: Path, mailbox: Mailbox) -> None:
    """The same while an env is built, and in the body of `get_client`."""
    driver = Driver(folder, scene, folder)
    mailbox.take(2)
    driver.signal(number)
    assert driver.end() == -number
    assert driver.survivors() == [] and driver.folders() == []
