"""The watch over the memory of workers, by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from espnet3.parallel.local import memory_limit
from espnet3.parallel.local.memory_limit import MemoryWatch
from espnet3.parallel.records import MEMORY_LIMIT
from tests.descriptors import no_descriptor_left


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that waits, in a group of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as started:
        yield started
        started.kill()


@pytest.fixture(autouse=True)
def always_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look whenever asked to."""
    monkeypatch.setattr(memory_limit, "_next_look", lambda: 0.0)


def test_a_moment_without_descriptors_ends_no_watch(program: subprocess.Popen[bytes]) -> None:
    """Where no descriptor is free for a look at a process, nothing is raised; the next look finds what it uses."""
    watch = MemoryWatch(1024, 1)
    with no_descriptor_left():
        watch.look("0", program.pid)
    assert program.poll() is None
    watch.look("0", program.pid)
    end = watch.end_of(program.pid, 9)
    assert program.wait(600) == -9
    assert end.reason == MEMORY_LIMIT
