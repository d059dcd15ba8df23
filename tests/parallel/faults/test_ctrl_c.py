"""Ctrl-C in the middle of everything: the driver ends soon, quietly, and nothing is left."""

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.clusters import client as client_module
from tests.parallel.faults.watching import Driver, Mailbox, nothing_left


def shown_by(driver: Driver, code: int, *, group: bool = False) -> str:
    """Interrupt a driver, which ends with a code and leaves nothing; return what it has shown."""
    driver.signal(signal.SIGINT, group=group)
    ended = driver.end()
    assert driver.survivors() == [] and driver.folders() == []
    assert ended == code, driver.text
    return driver.text


def interrupt(driver: Driver, *, group: bool = False) -> None:
    """Interrupt a driver and check how it ends: soon, with nothing left, and with not much to read."""
    text = shown_by(driver, 130, group=group)
    assert text.count("\n") < 5, text
    assert "Traceback" not in text, text


@pytest.mark.parametrize(("scene", "items"), [(("files",), 2), (("env_build",), 2), (("env_build", 1), 1)])
def test_in_the_middle(scene: tuple[str, ...], items: int, folder: Path, mailbox: Mailbox) -> None:
    """An interrupt of the driver, within items or while envs are built, ends it without pages of tracebacks."""
    driver = Driver(folder, scene[0], folder, *scene[1:])
    mailbox.take(items)
    interrupt(driver)


@pytest.mark.parametrize(
    ("scene", "items", "workers"), [("loop_body", 1, "processes"), ("runner", 2, "threads")]
)
def test_that_nobody_catches(scene: str, items: int, workers: str, folder: Path, mailbox: Mailbox) -> None:
    """A script without a handler ends by the signal, and shows one traceback: its own, KeyboardInterrupt."""
    driver = Driver(folder, scene, folder, UNCAUGHT="1", **{workers.upper(): "1"})
    mailbox.take(items)
    interrupt_uncaught(driver)


def test_while_a_client_closes(folder: Path, mailbox: Mailbox) -> None:
    """An interrupt at any moment of leaving `get_client` ends as quietly."""
    driver = Driver(folder, "stops", folder, UNCAUGHT="1")
    mailbox.take()
    interrupt_uncaught(driver)


@pytest.mark.parametrize("name", ["close_pool", "rename"])
def test_while_a_pool_closes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt within the pool's close, or between it and the cluster's, leaves neither cluster nor folder."""
    where: Any = client_module if name == "close_pool" else os
    act = getattr(where, name)

    def interrupted(*given: Any) -> None:
        act(*given)
        if name == "close_pool" or given[1].endswith("-gone"):
            raise KeyboardInterrupt

    monkeypatch.setattr(where, name, interrupted)
    with nothing_left(), pytest.raises(KeyboardInterrupt), get_client({"env": "local", "n_workers": 2}):
        parallel_map(abs, range(10))


def interrupt_uncaught(driver: Driver) -> None:
    """Interrupt a driver that does not catch it, and check what it leaves and shows."""
    text = shown_by(driver, -signal.SIGINT)
    text = re.sub(r"\Adashboard: .*\n", "", text)  # where bokeh is installed
    # a runner's last words: Python shows them under the exception, from 3.11 on
    text = re.sub(
        r"^stopped with 0 of \d+ items done, and nothing is kept: .*\n", "", text, flags=re.MULTILINE
    )
    assert text.startswith("Traceback") and text.count("Traceback") == 1, text
    assert text.splitlines()[-1] == "KeyboardInterrupt", text


def test_of_the_whole_process_group(folder: Path, mailbox: Mailbox) -> None:
    """The same where the terminal interrupts all processes of the group."""
    driver = Driver(folder, "runner", folder)
    mailbox.take()
    interrupt(driver, group=True)


def test_while_clusters_start_and_stop(folder: Path, mailbox: Mailbox) -> None:
    """An interrupt at any moment of a cluster's start or end leaves nothing."""
    driver = Driver(folder, "starts_and_stops", folder)
    mailbox.take()
    threading.Event().wait(0.4)  # what is tested is the moment, which no event marks
    interrupt(driver)
