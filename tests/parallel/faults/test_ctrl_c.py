"""Ctrl-C in the middle of everything: the driver ends soon, quietly, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed.utils import wait_for

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.clusters import client as client_module
from espnet3.parallel.pilots.dask.pools import close_pool
from tests.habits import rows
from tests.parallel.faults.watching import Driver, Mailbox, family, nothing_left

SCENES = [  # what the driver does, and how many items (or envs) are then in the middle of something
    ("files", 2),
    ("env_build", 2),
    pytest.param("client_body", 2, marks=pytest.mark.matrix),
    pytest.param("inline", 1, marks=pytest.mark.matrix),
    pytest.param("submitted", 1, marks=pytest.mark.matrix),
]


def interrupt(driver: Driver, *, group: bool = False) -> None:
    """Interrupt a driver and check how it ends: soon, with nothing left, and with not much to read."""
    driver.signal(signal.SIGINT, group=group)
    code = driver.end()
    text = driver.text
    assert driver.survivors() == []
    assert driver.folders() == []
    assert code == 130, text
    assert text.count("\n") < 5, text
    assert "Traceback" not in text, text


@pytest.mark.parametrize(("scene", "items"), SCENES)
def test_in_the_middle(scene: str, items: int, folder: Path, mailbox: Mailbox) -> None:
    """An interrupt of the driver ends it within seconds, without pages of tracebacks."""
    driver = Driver(folder, scene, folder)
    mailbox.take(items)
    interrupt(driver)


UNCAUGHT = [  # scene, items, what the workers are
    ("loop_body", 1, "processes"),
    ("runner", 2, "threads"),
    pytest.param("client_body", 2, "threads", marks=pytest.mark.matrix),
    pytest.param("submitted", 1, "threads", marks=pytest.mark.matrix),
]


@pytest.mark.parametrize(("scene", "items", "workers"), UNCAUGHT)
def test_that_nobody_catches(scene: str, items: int, workers: str, folder: Path, mailbox: Mailbox) -> None:
    """A script without a handler ends by the signal, and shows one traceback: its own, KeyboardInterrupt."""
    driver = Driver(folder, scene, folder, UNCAUGHT="1", **{workers.upper(): "1"})
    mailbox.take(items)
    interrupt_uncaught(driver)


def test_a_closing_that_is_cancelled_before_it_begins_says_nothing() -> None:
    """Dask may cancel the closing before its first step where Ctrl-C comes: Python prints no "was never awaited"."""

    async def cancelled(client: Any) -> None:
        closing = asyncio.ensure_future(wait_for(client._close(fast=True), 5))
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        del closing
        gc.collect()

    with get_client({"env": "local", "n_workers": 1}) as client:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            client.sync(cancelled, client)
        assert not [one for one in said if "never awaited" in str(one.message)]
        assert client.submit(abs, -1).result() == 1  # it was not closed


@pytest.mark.parametrize("workers", rows(["processes", "threads"], ("processes",)))
@pytest.mark.parametrize("delay", rows([0.0, 0.1], (0.0,)))
def test_while_a_client_closes(delay: float, workers: str, folder: Path, mailbox: Mailbox) -> None:
    """An interrupt at any moment of leaving `get_client` ends as quietly."""
    driver = Driver(folder, "stops", folder, UNCAUGHT="1", **{workers.upper(): "1"})
    mailbox.take()
    threading.Event().wait(delay)  # what is tested is the moment, which no event marks
    interrupt_uncaught(driver)


def test_while_a_pool_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between the pool's close and the cluster's leaves no cluster behind."""

    def interrupted(client: Any) -> None:
        close_pool(client)
        raise KeyboardInterrupt

    monkeypatch.setattr(client_module, "close_pool", interrupted)
    with nothing_left(), pytest.raises(KeyboardInterrupt), get_client({"env": "local", "n_workers": 2}):
        parallel_map(abs, range(10))


def test_while_the_loop_of_a_cluster_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt at the moment when the thread of a cluster's event loop starts is raised as what it is."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "IO loop":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), get_client({"env": "local", "n_workers": 2}):
        raise AssertionError("the client was opened")
    assert family() == []


def interrupt_uncaught(driver: Driver) -> None:
    """Interrupt a driver that does not catch it, and check what it leaves and shows."""
    driver.signal(signal.SIGINT)
    code = driver.end()
    text = driver.text
    assert driver.survivors() == []
    assert driver.folders() == []
    assert code == -signal.SIGINT, text
    text = re.sub(r"\Adashboard: .*\n", "", text)  # where bokeh is installed
    # a runner's last words: Python shows them under the exception, from 3.11 on
    text = re.sub(
        r"^stopped with 0 of \d+ items done, and nothing is kept: .*\n", "", text, flags=re.MULTILINE
    )
    assert text.startswith("Traceback") and text.count("Traceback") == 1, text
    assert text.splitlines()[-1] == "KeyboardInterrupt", text


@pytest.mark.parametrize("scene", rows(["runner", "inline"], ("runner",)))
def test_of_the_whole_process_group(scene: str, folder: Path, mailbox: Mailbox) -> None:
    """The same where the terminal interrupts all processes of the group."""
    driver = Driver(folder, scene, folder)
    mailbox.take()
    interrupt(driver, group=True)


@pytest.mark.parametrize("delay", rows([0.2, 0.4, 0.6, 0.9], (0.4,)))
def test_while_clusters_start_and_stop(delay: float, folder: Path, mailbox: Mailbox) -> None:
    """An interrupt at any moment of a cluster's start or end leaves nothing."""
    driver = Driver(folder, "starts_and_stops", folder)
    mailbox.take()
    threading.Event().wait(delay)  # what is tested is the moment, which no event marks
    interrupt(driver)


def test_while_the_env_is_built_in_the_driver(folder: Path, mailbox: Mailbox) -> None:
    """An interrupt while the env is built in the driver itself ends it."""
    driver = Driver(folder, "env_build", folder, 1)
    mailbox.take()
    interrupt(driver)
