"""How a process ended, read from what the system says of it and worded for people."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from espnet3.parallel.records import MEMORY_LIMIT, ProcessEnd

KILL = "import os, signal, sys; os.kill(os.getpid(), int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("number", "words", "by_itself"),
    [
        (signal.SIGSEGV, "was killed by SIGSEGV", True),
        (signal.SIGKILL, "was killed by SIGKILL", False),
        (signal.SIGRTMIN + 1, f"was killed by signal {signal.SIGRTMIN + 1}", False),
    ],
)
def test_a_signal(number: int, words: str, by_itself: bool) -> None:
    """A process killed by a signal is described by it, and only a crash is the process's own doing."""
    code = subprocess.run([sys.executable, "-c", KILL, str(int(number))], check=False).returncode
    end = ProcessEnd.from_returncode(code)
    assert (str(end), end.by_itself, end.exit_code, end.signal) == (words, by_itself, None, number)


def test_a_wait_status_says_the_same() -> None:
    """What `os.waitpid` and what `subprocess` give of the same end make equal records."""
    for code in (3, -signal.SIGABRT):
        program = KILL if code < 0 else "import sys; sys.exit(int(sys.argv[1]))"
        pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", program, str(abs(code))])
        _, status = os.waitpid(pid, 0)
        assert ProcessEnd.from_wait_status(status) == ProcessEnd.from_returncode(code)


def test_an_exit() -> None:
    """A process that exits does so by itself, whatever the code."""
    assert [str(ProcessEnd.from_returncode(code)) for code in (0, 3)] == [
        "exited with code 0",
        "exited with code 3",
    ]
    assert ProcessEnd.from_returncode(0).by_itself
    assert str(ProcessEnd()) == "ended" and not ProcessEnd().by_itself


def test_the_reason_is_said() -> None:
    """A process killed for its memory says so; one that exited before the signal came does not."""
    killed = ProcessEnd.from_wait_status(signal.SIGKILL, MEMORY_LIMIT)
    assert str(killed) == "was killed by SIGKILL for using more than its memory_limit allows"
    assert not killed.by_itself
    assert str(ProcessEnd.from_wait_status(3 << 8, MEMORY_LIMIT)) == "exited with code 3"
