"""A worker under the supervisor, and what its owner is told."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from espnet3.parallel.local.memory_limit import MemoryWatch

GRACE = 2.0  # seconds that a worker has to end by itself


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a worker came to its end.

    Attributes:
        was_up: The worker had started.
        refused: The worker reported why it cannot start.
        failure: Why it did not start, or that it had only just started; "" where its end was asked for.
    """

    was_up: bool = False
    refused: bool = False
    failure: str = ""


class Owner(Protocol):
    """Who is told about a worker, in the supervisor's thread."""

    def started(self, answer: Mapping[str, Any]) -> None:
        """Its process has started, and says this."""

    def ended(self, end: Ended) -> None:
        """Its process has ended, or there is none and it is stopped.

        Another is started once the owner asks for it by `Supervisor.start_again` where this one had been up, else by
        itself; neither where the worker is stopped or given up.
        """


@dataclass(slots=True, eq=False)
class Supervised:
    """A worker, and the process that it is now.

    Attributes:
        name: Its name; a replacement takes it over.
        boot: What its processes are told.
        memory: Watches their memory.
        owner: Who is told about it, if anybody.
        pid: Its process; 0 while that is not known.
        up: The process has started.
        ended: It has ended, and no other has been asked for yet.
        refused: The worker reported why it cannot start.
        failure: Why the last one did not start; "" where none has failed.
        given_up: No other one is started.
        stopped: Nor here: its end was asked for.
        sock: To the process; None where there is none.
        inbox: What was read from it, up to the end of a line.
        answer: The first line of a process that has started.
        since: When it was up, by `time.monotonic`, as the following two.
        again: When the next process is started.
        kill: When this one is killed, if it has not ended by then.
        failed: Starts that failed, in a row.
        early: Processes that ended as soon as they were up, in a row.
    """

    name: str
    boot: Mapping[str, Any]
    memory: MemoryWatch
    owner: Owner | None = None
    pid: int = 0
    up: bool = False
    ended: bool = False
    refused: bool = False
    failure: str = ""
    given_up: bool = False
    stopped: bool = False
    sock: socket.socket | None = None
    inbox: bytes = b""
    answer: Mapping[str, Any] | None = None
    since: float = 0.0
    again: float | None = None
    kill: float | None = None
    failed: int = 0
    early: int = 0

    def restart(self) -> None:
        """Forget the last process: another is being started."""
        self.again, self.pid, self.inbox, self.answer, self.failure = None, 0, b"", None, ""
        self.up = self.ended = self.refused = False

    def tell_owner(self) -> None:
        """Say that the process has ended."""
        if self.owner is not None:
            self.owner.ended(Ended(self.up, self.refused, self.failure))

    def moments(self) -> list[float]:
        """Return when something is to be done about it."""
        moments = [] if self.again is None else [self.again]
        if self.pid and not self.ended and self.kill is not None:
            moments.append(self.kill)
        if self.up and not self.ended:
            moments.append(self.memory.next_look)
        return moments

    def send(self, line: bytes) -> bool:
        """Send a line to the process; False if it is not there."""
        if self.sock is None:
            return False
        try:
            self.sock.sendall(line)
        except OSError:
            return False
        return True
