"""A batch scheduler whose jobs are light: Dask workers or detached shards, forked from a process that has imported all.

It has SLURM's commands as far as `env: slurm` uses them, and runs every job at once, of an array as many as it may. A
worker costs some ten megabytes and no import, so two cores hold hundreds of them.

    sbatch, squeue, scancel ──unix socket──> the server ──fork──> the worker's own command
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import ROOT

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")

_CLIENT = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    line.sendall("\\0".join([os.path.basename(sys.argv[0]), os.getcwd(), *sys.argv[1:]]).encode())
    line.shutdown(socket.SHUT_WR)
    sys.stdout.write(line.makefile().read())
"""


@contextmanager
def scheduler() -> Iterator[None]:
    """Put the commands on the PATH for a block of code; what its jobs left is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="espnet3-light-") as name:
        folder = Path(name)
        address = str(folder / "line")
        for command in COMMANDS:
            (folder / command).write_text(_CLIENT.format(python=sys.executable, address=address))
            (folder / command).chmod(0o755)
        path = os.environ["PATH"]
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.light_jobs", address],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
        try:
            assert server.stdout is not None
            if not server.stdout.readline():
                raise RuntimeError("the server of the light jobs did not start; see what it printed above")
            yield
        finally:
            os.environ["PATH"] = path
            server.communicate()  # closes its standard input: it ends its jobs, then itself


class Server:
    """Answers the commands, and forks the jobs."""

    def __init__(self, address: str) -> None:
        """Listen at an address."""
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(address)
        self.door.listen(512)
        self.running: dict[str, int] = {}  # pid by id
        self.waiting: dict[str, tuple[str, str]] = {}  # script and folder by id
        self.most = sys.maxsize  # of the last array: so many run at once
        self.last = 0

    def serve(self) -> None:
        """Answer until standard input ends."""
        while True:
            readable, _, _ = select.select([self.door, sys.stdin], [], [], 0.005 if self.waiting else 0.2)
            self._reap()
            if sys.stdin in readable:
                break
            if self.door in readable:
                line, _ = self.door.accept()
                with line:
                    verb, self.folder, *words = line.makefile().read().split("\0")
                    line.sendall(getattr(self, "_" + verb)(words).encode())
        for pid in self.running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        for job, pid in list(self.running.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.running[job]
        for job in list(itertools.islice(self.waiting, max(0, self.most - len(self.running)))):
            self.running[job] = self._fork(job, *self.waiting.pop(job))

    def _sbatch(self, words: list[str]) -> str:
        script = Path(words[-1]).read_text()
        self.last += 1
        array = re.search(r"^#SBATCH --array=(\d+)-(\d+)(?:%(\d+))?", script, re.MULTILINE)
        if array:
            self.waiting |= {
                f"{self.last}_{k}": (script, self.folder) for k in range(int(array[1]), int(array[2]) + 1)
            }
        else:
            self.waiting[str(self.last)] = script, self.folder
        self.most = int(array[3]) if array and array[3] else sys.maxsize
        return f"Submitted batch job {self.last}\n"

    def _fork(self, job: str, script: str, folder: str) -> int:
        """Fork a job, or an element of an array, in the folder that it was submitted from."""
        pid = os.fork()
        if pid:
            return pid
        self.door.close()
        os.chdir(folder)
        number, _, index = job.partition("_")
        os.environ.update(SLURM_JOB_ID=job, SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=index)
        command = script.strip().splitlines()[-1].removeprefix("exec ")
        counted = re.search(r"\$\(\(\$SLURM_ARRAY_TASK_ID \+ (-?\d+)\)\)", command)
        if counted:  # what a shell would do with the worker's name
            command = command.replace(counted[0], str(int(index) + int(counted[1])))
        log = re.search(r"^#SBATCH -[eo] (.+)$", script, re.MULTILINE)
        assert log is not None, script
        words = shlex.split(command.replace("$SLURM_ARRAY_TASK_ID", index))
        _work(words, re.sub("%J|%A_%a", job, log[1]))
        return 0

    def _squeue(self, words: list[str]) -> str:
        listed = itertools.chain(self.running, self.waiting)
        return "".join(
            f"{job}|{'PENDING' if job in self.waiting else 'RUNNING'}|None|light\n" for job in listed
        )

    def _scontrol(self, words: list[str]) -> str:
        return "MaxArraySize = 1000001\n" if words == ["show", "config"] else "Invalid job id specified\n"

    def _scancel(self, words: list[str]) -> str:
        for word in words:
            for job in [job for job in self.waiting if job in (word, f"{word}_{job.partition('_')[2]}")]:
                del self.waiting[job]
            with contextlib.suppress(KeyError, ProcessLookupError):
                os.kill(self.running[word], signal.SIGTERM)
        return ""


def _work(command: list[str], log: str) -> None:
    """Be a job: run `python -m module arguments` in this process, write to a log, and end with it."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        module = command.index("-m")
        main = importlib.import_module(command[module + 1]).main
        if command[module + 1] == "distributed.cli.dask_worker":
            main(command[module + 2 :], standalone_mode=False)
            code = 0
        else:
            code = main(command[module + 2 :])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _prepare() -> None:
    """Do what each worker would do once at its start, so that the jobs find it done.

    It is theirs, not the driver's: on a cluster their own machines do it.
    """
    import dask
    import distributed.cli.dask_worker
    import tornado.platform.asyncio  # noqa: F401  # jobs find this and what follows imported
    from distributed.http.utils import get_handlers
    from distributed.versions import get_versions
    from tornado import netutil

    get_versions()  # reads files
    get_handlers(None, dask.config.get("distributed.worker.http.routes"))  # imports them
    for name in ("_client_ssl_defaults", "_server_ssl_defaults"):  # they read the machine's certificates
        defaults = getattr(netutil, name, None)
        if callable(defaults):  # else it is an older tornado, which has read them when it was imported
            defaults()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        distributed.cli.dask_worker.main(["--help"])  # its parser


def serve(address: str) -> None:
    """Import what a worker needs, listen, say so, and serve."""
    import dask

    _prepare()
    # hundreds of processes that wake up many times a second would measure themselves
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            "distributed.admin.tick.interval": "5s",
            "distributed.admin.tick.limit": "1h",
            "distributed.admin.system-monitor.interval": "5s",
            "distributed.worker.memory.monitor-interval": "5s",
            "distributed.diagnostics.nvml": False,
        }
    )
    gc.freeze()  # the jobs share what is there; a collection of garbage would have each write to all of it
    server = Server(address)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    serve(sys.argv[1])
