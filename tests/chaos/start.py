"""One start of the program: what it does is reported through a pipe, and can be waited for."""

import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.program import ENDED, ITEM, PHASE, RECORD, START, TAKEN
from tests.parallel.faults.watching import REPO, TOKEN, servers_of, workers_of

GUARD = 600.0  # seconds until a start counts as hanging, beside any load


class StuckError(AssertionError):
    """A start took longer than `GUARD`."""


@dataclass
class Reported:
    items: list[int] = field(default_factory=list)  # begun
    chunk: int = 0  # the most items handed out at a time
    phases: set[int] = field(default_factory=set)


class Pipe:
    """The named pipe that all processes of a round write to."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # also for writing: it never ends
        self.reported: dict[int, Reported] = {}

    def read(self) -> None:
        while True:
            try:
                data = os.read(self.fd, struct.calcsize(RECORD) << 10)
            except BlockingIOError:
                return
            for what, start, number in struct.iter_unpack(RECORD, data):
                reported = self.reported.setdefault(start, Reported())
                if what == ITEM:
                    reported.items.append(number)
                elif what == TAKEN:
                    reported.chunk = max(reported.chunk, number)
                else:
                    assert what == PHASE
                    reported.phases.add(number)

    def close(self) -> None:
        os.close(self.fd)


class Start:
    """The program, running in a session of its own; every process of the round has the token."""

    def __init__(self, pipe: Pipe, number: int, home: Path, settings: dict[str, object], token: str) -> None:
        self.pipe = pipe
        self.number = number
        self.n_workers = int(str(settings["workers"]))
        self.reported = pipe.reported.setdefault(number, Reported())
        self.output = home / f"start.{number}.out"
        self._ended, theirs = os.pipe()
        environ = {**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(home), TOKEN: token}
        try:
            with self.output.open("wb") as out:
                self.process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("program.py")), json.dumps(settings)],
                    env={**environ, START: str(number)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs],  # the driver's alone: its end is the driver's
                    start_new_session=True,
                )
        finally:
            os.close(theirs)
        self._until = time.monotonic() + GUARD

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, reached: Callable[[Reported], bool]) -> bool:
        """Wait until something has been reported; False if the driver ended before."""
        while True:
            self.pipe.read()
            if reached(self.reported):
                return True
            ready, _, _ = select.select(
                [self.pipe.fd, self._ended], [], [], max(0.0, self._until - time.monotonic())
            )
            if not ready:
                raise StuckError(f"start {self.number} still runs after {GUARD:g} s:\n{self.text}")
            if self._ended in ready:
                return False

    def end(self) -> int:
        self.wait_for(lambda _: False)
        code = self.process.wait()
        self.pipe.read()
        return code

    def finished(self) -> bool:
        return ENDED in self.reported.phases

    def driver(self) -> list[int]:
        return [self.process.pid]

    def server(self) -> list[int]:
        return self._look(servers_of)

    def workers(self) -> list[int]:
        return self._look(workers_of)

    def _look(self, of: Callable[[int], list[psutil.Process]]) -> list[int]:
        try:
            return [process.pid for process in of(self.process.pid)]
        except psutil.NoSuchProcess:  # it has just ended
            return []

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ended)


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
