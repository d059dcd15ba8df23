"""Runners of the tests, which jobs import by name; and the ways to hold one and to look inside."""

from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import living_pid

if TYPE_CHECKING:  # jobs load this module, too
    from espnet3.parallel.detached.looking.detached_run import DetachedRun

ROOT = Path(__file__).resolve().parents[3]
Done = subprocess.CompletedProcess[str]


class Provider(EnvironmentProvider):
    """The env is the folder of a test, and what goes wrong there."""

    def build_env_local(self) -> dict[str, Any]:
        if self.config.get("broken"):
            raise RuntimeError("the model is not there, for password=hunter2")
        note(Path(self.config["folder"]), os.getpid(), "builds")
        return {"folder": Path(self.config["folder"]), "bad": self.config.get("bad")}


def note(folder: Path, idx: Any, what: str = "calls") -> None:
    fd = os.open(folder / f"{what}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b"%d\n" % idx)
    os.close(fd)


def calls(folder: Path) -> Counter[int]:
    return Counter(int(line) for file in folder.glob("calls.*") for line in file.read_text().splitlines())


def builds(folder: Path) -> int:
    """Return how often an env was built."""
    return sum(len(file.read_text().splitlines()) for file in folder.glob("builds.*"))


def misbehave(idx: int, folder: Path, bad: Any) -> None:
    """Do at one item what `bad` says (or at each, or at every so many), until the file `repaired` is there."""
    if bad is None or (folder / "repaired").exists():
        return
    item, how, *more = bad
    if how == "slow":
        time.sleep(item)  # an item of real work: its length is what the test is about
    elif how == "every" and idx % item == 0:
        raise ValueError(f"no square of {idx}")
    if idx != item:
        return
    if how in ("die", "leave", "shot"):
        end_process(how)
    elif how == "eat":
        food = bytearray(more[0] << 20)
        food[:: mmap.PAGESIZE] = bytes(len(range(0, len(food), mmap.PAGESIZE)))
        time.sleep(3)  # whoever watches memory looks once a second
    elif how == "raise":
        raise ValueError(f"no square of {idx}")
    elif how in ("sleep", "lock", "child"):
        hang(how, folder)
    elif how in ("fork", "tool", "long", "pool"):
        meet_signals(how, folder)


def meet_signals(how: str, folder: Path) -> None:
    """Fork and end a process, keep a pool, fail when a tool is ended, or be in a call into C for minutes."""
    (folder / "begun").touch()
    if how == "long":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
    elif how == "pool":
        globals()["pool"] = concurrent.futures.ProcessPoolExecutor(1)
        assert globals()["pool"].submit(os.getpid).result() != os.getpid()
    elif how == "tool":
        subprocess.run(["sleep", "1000"], check=True)
    elif child := os.fork():
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        assert "stopping" not in (folder / "run/detached/shard.0/mark.json").read_text()
    else:
        signal.pause()
        os._exit(1)


def end_process(how: str) -> None:
    if how != "die":
        time.sleep(0.2)  # long enough to be in progress alone: where quick items are, it takes one more death
    if how == "leave":
        os._exit(1)  # the exit status of a job that has failed in order
    os.kill(os.getpid(), signal.SIGKILL)


def hang(how: str, folder: Path) -> None:
    """Never come back."""
    if how == "lock":  # of the interpreter: no other thread of this process runs
        ctypes.PyDLL(None).sleep(1000)
    if how == "child":  # a process of a session of its own
        child = os.fork()
        if child == 0:
            os.setsid()
        else:
            (folder / "child").write_text(str(child))
    while True:
        time.sleep(60)


class Squares(BaseRunner):
    """Squares, which can be held at an item, or fail or die there."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> dict[str, Any]:
        """Return the square; at an item with a pipe of its name, say who runs it and wait."""
        note(folder, idx)
        pipe = folder / f"hold.{idx}"
        if pipe.exists():
            pipe.write_text(str(os.getpid()))  # opens when the test reads
            (folder / f"go.{idx}").read_text()  # opens when the test writes, which it need not do
        misbehave(idx, folder, bad)
        return {"square": idx * idx, "text": f"«{idx}»"}

    @staticmethod
    def batch_forward(indices: list[int], folder: Path, bad: Any) -> list[dict[str, Any]]:
        return [Squares.forward(idx, folder, bad) for idx in indices]


class Forgets(BaseRunner):
    @staticmethod
    def forward(idx: int) -> None:
        """Square the index."""
        idx * idx


class Files(BaseRunner):
    """Writes a file for each shard, and merges them into one."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> int:
        """Return the square, or misbehave."""
        note(folder, idx)
        misbehave(idx, folder, bad)
        return idx * idx

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> Any:
        return open(shard_dir / "text", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers: Any, result: int, state: dict[str, Any], **env: Any) -> None:
        writers.write(f"{state['index']} {result}\n")

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        writers.close()

    def merge(self, shard_dirs: list[Path]) -> str:
        return "".join((folder / "text").read_text(encoding="utf-8") for folder in shard_dirs)


class Fussy(Files):
    """Files whose merge fails until the file `repaired` is there."""

    def merge(self, shard_dirs: list[Path]) -> str:
        misbehave(0, Path(self.output_dir).parent, [0, "raise"])
        return super().merge(shard_dirs)


class Quiet(Files):
    @staticmethod
    def merge(shard_dirs: list[Path]) -> None:
        pass


class Deaf(Squares):
    """Squares whose item 1 keeps the interpreter's lock, and so hears no signal."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> dict[str, Any]:
        """Return the square."""
        if idx == 1:
            (folder / "hold.1").write_text(str(os.getpid()))
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # else one ends its call
            hang("lock", folder)
        return Squares.forward(idx, folder, bad)


class DiesInAHook(Files):
    """Ends its job's process in the hook that the config names, as it says."""

    @staticmethod
    def open_writers(shard_dir: Path, bad: Any, **env: Any) -> Any:
        die_in("open_writers", bad)
        return Files.open_writers(shard_dir)

    @staticmethod
    def close_writers(writers: Any, state: Any, bad: Any) -> None:
        Files.close_writers(writers, state)
        die_in("close_writers", bad)


def die_in(hook: str, bad: Any) -> None:
    """End this process, if it is meant."""
    if bad == [hook, "killed"]:
        os.kill(os.getpid(), signal.SIGKILL)
    elif bad == [hook, "leaves"]:
        os._exit(0)  # what a job that is done ends with


def hold(folder: Path, idx: int) -> None:
    """Have the job that comes to an item wait there."""
    folder.mkdir(exist_ok=True)
    for name in ("hold", "go"):
        os.mkfifo(folder / f"{name}.{idx}")


def held(folder: Path, idx: int) -> int:
    """Wait until a job is held at an item, and return its process."""
    return int((folder / f"hold.{idx}").read_text())


def let_go(folder: Path, idx: int, *, dead: bool = False) -> None:
    """Hold nobody at an item any more; whoever is held goes on, unless it is dead."""
    (folder / f"hold.{idx}").unlink()
    if not dead:
        (folder / f"go.{idx}").write_text("go")


def run_of(folder: Path, n: int | range = 12, workers: int = 2, shards: int = 3, **arguments: Any) -> Any:
    """Submit squares of so many items, or of these, or what `runner` says, as local jobs."""
    folder.mkdir(exist_ok=True)
    cls = arguments.pop("runner", Squares)
    config = {"folder": str(folder), **arguments.pop("config", {})}
    set_parallel({"env": "local", "n_workers": workers, "detached": {"shards": shards}})
    defaults = {"output_dir": folder / "run", "async_specs_dir": folder / "specs", "async_mode": True}
    defaults["progress"] = False
    return cls(Provider(config), **{**defaults, **arguments})(range(n) if isinstance(n, int) else n)


def here(folder: Path, n: int = 12, **arguments: Any) -> bytes:
    """Run the same in this process; return the merged file."""
    folder.mkdir()
    set_parallel(None)
    Squares(Provider({"folder": str(folder)}), output_dir=folder / "run", progress=False, **arguments)(
        range(n)
    )
    return (folder / "run/results.jsonl").read_bytes()


def python(*words: object, cwd: Path | str, typed: str = "", ok: bool = False, seconds: float = 600) -> Done:
    """Run Python to its end; `typed` is its standard input."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert not ok or done.returncode == 0, done.stdout + done.stderr
    return done


def espnet3(*words: object, cwd: Path, ok: bool = True, seconds: float = 600) -> Done:
    """Run the command `espnet3-parallel` as another process does, somewhere else."""
    return python("-m", "espnet3_parallel", *words, cwd=cwd, ok=ok, seconds=seconds)


def program(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Start Python in a session of its own; a test writes to its input, and reads what it prints."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def status_json(run: Path, cwd: Path) -> Any:
    return json.loads(espnet3("status", run, "--json", cwd=cwd, ok=False).stdout)


def shut(run: DetachedRun) -> None:
    """End whatever a test has left, however it went; a stand-in kills its own jobs when it ends."""
    if Layout(run.path).plan().env in ("local", "local_gpu", "ssh") and run.status().alive:
        run.cancel(grace=0.2)


def gone(pid: int, seconds: float = 600.0) -> None:
    """Wait until a process that is no child of ours has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:  # it has
        return
    try:
        assert select.select([fd], [], [], seconds)[0], f"process {pid} is still there"
    finally:
        os.close(fd)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    gone(pid)


def supervised(run: DetachedRun) -> bool:
    return living_pid(Layout(run.path).supervisor) is not None


def supervisor(run: DetachedRun) -> int:
    pid = living_pid(Layout(run.path).supervisor)
    assert pid is not None
    return pid
