"""Jobs of all stand-ins: files on disk, and a supervisor for each job that runs it as process groups.

A job is a file for each of its elements, which the holder of the lock may change. The supervisor starts an element
when slots are free, in order, ends it at its walltime or when it is cancelled, and keeps its exit code.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from tests.standins.habits import LATE, Habit, Habits

TICK = 0.2  # seconds between the rounds of a supervisor
GRACE = 2.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Element:
    """One job, or one element of a job array."""

    job: int
    index: int | None  # None: not an array
    name: str
    queue: str
    cores: int  # slots
    limit: int  # elements of its array that may run at once; 0: any number
    walltime: float | None  # seconds
    folder: str
    output: str | None  # a file name in which "%J" is the job and "%I" the index; None: nowhere
    error: str | None  # None: with the output
    variables: dict[str, str]  # beyond the submitter's
    id_variable: str
    index_variable: str
    script: str
    submitted: float
    element_id: str = "%J"  # what `id_variable` holds in an element of an array
    expired: str = ""  # what the scheduler adds to the output of a job at its walltime
    state: str = "waiting"  # "running", "done"
    pid: int | None = None  # the leader of its process group
    started: float | None = None
    exit_code: int | None = None  # 128 + n if signal n ended it
    ended_by: str = ""  # "walltime", "cancel"


class Store:
    """The jobs of the stand-in in a folder; without one, of the command that runs."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(os.environ["ESPNET3_STANDIN"])
        self.slots = int(os.environ.get("ESPNET3_STANDIN_SLOTS", "8"))
        self.user = f"u{os.getuid()}"  # no test looks for the name
        self.habits = Habits(self.folder, os.environ.get("ESPNET3_STANDIN_HABITS", ""))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock."""
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, job: int, index: int | None) -> Path:
        return self.folder / f"{job}.{'one' if index is None else index}.json"

    def save(self, element: Element) -> None:
        path = self._path(element.job, element.index)
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(element)))
        whole.replace(path)

    def elements(self) -> list[Element]:
        found = [Element(**json.loads(path.read_text())) for path in self.folder.glob("*.*.json")]
        return sorted(found, key=lambda each: (each.job, each.index or 0))

    def select(self, job: int, index: int | None = None) -> list[Element]:
        """Return a job's elements, or one of them."""
        mine = [each for each in self.elements() if each.job == job]
        return mine if index is None else [each for each in mine if each.index == index]

    def seen(self, *, history: bool, whole: bool = True) -> list[Element]:
        """Return the elements that a command sees: with `history` also ended ones; `whole`: it lists all jobs."""
        known = [
            each
            for each in self.elements()
            if self.habits.knows(each.submitted, each.state == "done", history=history)
        ]
        shown = self.habits.listed(len(known)) if whole else set(range(len(known)))
        return [each for place, each in enumerate(known) if place in shown]

    def can_run(self, element: Element) -> bool:
        """Return whether an element asks for no more than there is; with no slots at all, it just waits."""
        return not 0 < self.slots < element.cores

    # --- submission ---

    def submit(self, text: str, indices: list[int] | None, **facts: Any) -> int:
        """Queue a script and start its supervisor, which outlives this process; return the job's number."""
        with self.locked():
            counter = self.folder / "last"
            job = int(counter.read_text()) + 1 if counter.exists() else 1
            counter.write_text(str(job))
            script = self.folder / f"{job}.sh"
            script.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
            script.chmod(0o700)
            for index in indices or [None]:  # type: ignore[list-item]  # not an array: one element without an index
                self.save(Element(job=job, index=index, script=str(script), submitted=time.time(), **facts))
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                quiet = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(quiet, stream)
                with contextlib.suppress(FileNotFoundError):  # the stand-in was removed
                    self._supervise(job)
                for thread in threading.enumerate():  # what delivers late output
                    if thread is not threading.current_thread():
                        thread.join()
            os._exit(0)
        os.wait()
        return job

    def cancel(self, element: Element) -> bool:
        with self.locked():
            now = self.select(element.job, element.index)[0]
            if now.state == "done":
                return False
            code = 128 + signal.SIGTERM
            gone = replace(now, state="done", exit_code=code) if now.state == "waiting" else now
            self.save(replace(gone, ended_by="cancel"))
            return True

    def cancel_named(self, names: Iterable[str]) -> Iterator[tuple[str, bool | None]]:
        """Cancel jobs ("7"), arrays ("7[]") or elements ("7[2]"); yield name and success, None for an unknown job."""
        for name in names:
            found = re.match(r"(\d+)(?:\[(\d*)\])?", name)
            chosen = self.select(int(found[1]), int(found[2]) if found[2] else None) if found else []
            ended = [self.cancel(each) for each in chosen]
            yield name, any(ended) if chosen else None

    def end_all(self) -> None:
        """Kill every job's processes and wait until no supervisor is at work."""
        for each in self.elements():
            self.cancel(each)
        until = time.monotonic() + 10
        while any(each.state != "done" for each in self.elements()) and time.monotonic() < until:
            time.sleep(TICK)

    # --- the supervisor of one job ---

    def _supervise(self, job: int) -> None:
        running: dict[int | None, subprocess.Popen[bytes]] = {}
        killed: dict[int | None, float] = {}
        while True:
            with self.locked():
                everyone = self.elements()
                for each in self.select(job):
                    if each.state == "waiting" and self._may_start(each, everyone):
                        running[each.index] = self._start(each)
                    elif each.state == "running":
                        self._look_after(each, running[each.index], killed)
                    else:
                        continue
                    everyone = self.elements()
                if all(each.state == "done" for each in self.select(job)):
                    return
            time.sleep(TICK)

    def _may_start(self, element: Element, everyone: list[Element]) -> bool:
        busy = sum(each.cores for each in everyone if each.state == "running")
        siblings = sum(each.state == "running" and each.job == element.job for each in everyone)
        earlier = any(each.state == "waiting" and each.job < element.job for each in everyone)
        full = element.limit and siblings >= element.limit
        return not earlier and not full and busy + element.cores <= self.slots

    def _start(self, element: Element) -> subprocess.Popen[bytes]:
        own = {element.id_variable: str(element.job)}
        if element.index is not None:
            own = {
                element.id_variable: _filled(element.element_id, element),
                element.index_variable: str(element.index),
            }
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(self._log(element.output or os.devnull, element))
            error = stack.enter_context(self._log(element.error, element)) if element.error else output
            hidden = ("ESPNET3_STANDIN", "ESPNET3_STANDIN_SLOTS", "ESPNET3_STANDIN_HABITS", "PYTHONPATH")
            inherited = {name: value for name, value in os.environ.items() if name not in hidden}
            process = subprocess.Popen(
                [element.script],
                cwd=element.folder,
                env={**inherited, **element.variables, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                start_new_session=True,
            )
        self.save(replace(element, state="running", pid=process.pid, started=time.time()))
        return process

    def _look_after(
        self, element: Element, process: subprocess.Popen[bytes], killed: dict[int | None, float]
    ) -> None:
        code = process.poll()
        if code is not None:
            _signal(process.pid, signal.SIGKILL)  # what is left of its group
            self._deliver(element)
            self.save(replace(element, state="done", exit_code=code if code >= 0 else 128 - code))
            return
        assert element.started is not None
        late = element.walltime is not None and time.time() - element.started > element.walltime
        if late and not element.ended_by:
            element = replace(element, ended_by="walltime")
            self.save(element)
            if element.expired:
                with self._log(element.output or os.devnull, element) as log:
                    log.write(f"{element.expired}\n".encode())
        if element.ended_by and element.index not in killed:
            killed[element.index] = time.monotonic()
            _signal(process.pid, signal.SIGTERM)
        elif element.ended_by and time.monotonic() - killed[element.index] > GRACE:
            _signal(process.pid, signal.SIGKILL)

    # --- output files ---

    def _log(self, pattern: str, element: Element) -> IO[bytes]:
        """Open an output file; with late logs it lies in the stand-in's folder until it is delivered."""
        file = Path(_filled(pattern, element))
        late = Habit.LATE_LOGS in self.habits and str(file) != os.devnull
        return open(self.folder / f"spool.{_spooled(file)}" if late else file, "ab")

    def _deliver(self, element: Element) -> None:
        """Bring the output files of an element that has ended, if they are late, after a while."""
        for pattern in (element.output, element.error):
            if Habit.LATE_LOGS not in self.habits or pattern is None:
                continue
            file = Path(_filled(pattern, element))
            spool = self.folder / f"spool.{_spooled(file)}"
            timer = threading.Timer(LATE, _append, (spool, file))
            timer.start()  # the supervisor's process ends after it


def _filled(pattern: str, element: Element) -> str:
    return pattern.replace("%J", str(element.job)).replace("%I", str(element.index or 0))


def _spooled(file: Path) -> str:
    return str(file).replace("/", "%")


def _append(spool: Path, file: Path) -> None:
    """Move what lies in a file to the end of another, whose folder may be gone."""
    with contextlib.suppress(FileNotFoundError):
        data = spool.read_bytes()
        spool.unlink()
        with open(file, "ab") as stream:
            stream.write(data)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
