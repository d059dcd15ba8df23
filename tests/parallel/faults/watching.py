"""What the tests of faults look at: messages from items, and what a run may leave behind."""

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from espnet3.parallel.local.workers import end_idle
from tests.waiting import wait_until

REPO = Path(__file__).resolve().parents[3]
TOKEN = "ESPNET3_FAULTS_TOKEN"  # in the environment of every process that a test starts, directly or not
TWO = {"env": "local", "n_workers": 2}
PATIENCE = 300.0  # seconds for a busy machine to take away what has been killed, or to replace it


# --- messages from items ---------------------------------------------------------------------------


class Mailbox:
    """A named pipe that items write lines to; reading waits for them, with a hang guard."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR)  # also for writing: it never ends, and no writer waits
        self._rest = b""

    def take(self, lines: int = 1, guard: float = 600.0) -> list[str]:
        end = time.monotonic() + guard
        while self._rest.count(b"\n") < lines:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited {guard} s for {lines} messages from items, and have {self._rest!r}"
            self._rest += os.read(self._fd, 1 << 16)
        *taken, self._rest = self._rest.split(b"\n", lines)
        return [line.decode() for line in taken]

    def pending(self) -> int:
        while select.select([self._fd], [], [], 0)[0]:
            self._rest += os.read(self._fd, 1 << 16)
        return self._rest.count(b"\n")

    def close(self) -> None:
        os.close(self._fd)


# --- what is left behind -----------------------------------------------------------------------------


def family(token: str | None = None) -> list[psutil.Process]:
    """Return every process that a test started, however it was started and whoever adopted it."""
    token = token or os.environ[TOKEN]
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token:
                found.append(process)
        except psutil.Error:  # it has just ended, or is a zombie: nothing of it runs
            continue
    return found


def workers_of(driver: int | None = None) -> list[psutil.Process]:
    """Return the worker processes of a driver: what its fork server has forked."""
    return [p for server in servers_of(driver) for p in server.children()]


def servers_of(driver: int | None = None) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(driver).children():
        try:
            if any("local.forking" in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:  # it has ended: an earlier test's
            continue
    return found


def zombies() -> set[int]:
    """Return the children of this process that have ended and were not waited for."""
    children = psutil.Process().children()
    return {p.pid for p in children if p.is_running() and p.status() == psutil.STATUS_ZOMBIE}


def listeners(pid: int | None = None) -> set[str]:
    found = set()
    for c in psutil.Process(pid).net_connections("all"):
        unix = c.family == socket.AF_UNIX and c.laddr and "espnet3-" in str(c.laddr)
        if c.status == psutil.CONN_LISTEN or unix:
            found.add(str(c.laddr))
    return found


def folders() -> set[str]:
    return {p.name for p in Path(tempfile.gettempdir()).glob("espnet3-*")}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that a block leaves no process, zombie, thread, listener or temporary folder behind.

    Workers that stay for the next call are ended at once, as they end by themselves a few seconds later.
    """
    end_idle()
    # what a test before this one killed (multiprocessing's own helper, say) may be a zombie already
    dead, threads, sockets, temporary = zombies(), set(threading.enumerate()), listeners(), folders()
    yield
    end_idle()
    left = left_behind(dead, threads, sockets, temporary)
    assert not left, f"left behind: {left}"


def left_behind(
    dead: set[int], threads: set[threading.Thread], sockets: set[str], temporary: set[str]
) -> dict[str, list[object]]:
    """Return what is there and was not before, after a few seconds' patience."""
    gone_by = time.monotonic() + PATIENCE
    _, alive = psutil.wait_procs(family(), timeout=PATIENCE)
    for thread in set(threading.enumerate()) - threads:
        if thread.name != "Dask-Offload_0":  # one per process, kept by Dask on purpose
            thread.join(max(0.0, gone_by - time.monotonic()))
    left: dict[str, list[object]] = {
        "processes": [" ".join(p.cmdline())[-200:] for p in alive if p.is_running()],
        "zombies": sorted(zombies() - dead),
        "threads": [
            t.name for t in set(threading.enumerate()) - threads if not t.name.startswith("Dask-Offload")
        ],
        "sockets": sorted(listeners() - sockets),
        "folders": sorted(folders() - temporary),
    }
    return {kind: what for kind, what in left.items() if what}


# --- a driver in a process of its own ---------------------------------------------------------------


class Driver:
    """A script of `drivers.py` that runs in a session of its own."""

    def __init__(self, folder: Path, name: str, *args: object, **env: str) -> None:
        self.folder = folder
        self.output = folder / f"{name}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("drivers.py")), name, *map(str, args)],
                env={**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(folder), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send it a signal, or its whole process group, as a terminal does."""
        (os.killpg if group else os.kill)(self.pid, number)

    def end(self, guard: float = 600.0) -> int:
        try:
            return self.process.wait(guard)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver still runs after {guard} s; it printed:\n{self.text}") from None

    def survivors(self) -> list[str]:
        _, alive = psutil.wait_procs(family(), timeout=PATIENCE)
        return [" ".join(p.cmdline())[-200:] for p in alive if p.is_running()]

    def folders(self) -> list[str]:
        return [p.name for p in self.folder.glob("espnet3-*")]


def ran(code: str, folder: Path, **env: str) -> str:
    """Return what a script printed in a bare environment; a hang, an error or a process that stays is a failure."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(REPO), "TMPDIR": str(folder), "PATH": "/usr/bin:/bin", **env},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: not family())
    return done.stdout


def kill_family(token: str | None = None) -> None:
    """SIGKILL what a failed test has left running, but for a helper that multiprocessing keeps on purpose."""
    for process in family(token):
        try:
            if not any("resource_tracker" in part for part in process.cmdline()):
                process.kill()
        except psutil.NoSuchProcess:
            continue


# --- acting beside a run ------------------------------------------------------------------------------


@contextmanager
def acting(act: Callable[[], None]) -> Iterator[None]:
    """Act in a thread beside the block; its failure is the block's."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # shown by the main thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert not failed
