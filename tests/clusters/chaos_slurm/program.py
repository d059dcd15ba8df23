"""What the disturbed jobs run: items that take a moment, and note who runs them."""

import os
import time
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.parallel.detached.work import note


class Provider(EnvironmentProvider):
    """The env is where to note, and how long an item takes."""

    def build_env_local(self) -> dict[str, Any]:
        return {"folder": Path(self.config["folder"]), "seconds": self.config["seconds"]}


class Items(BaseRunner):
    """Squares; each item that two processes run at the same time leaves a file `twice.INDEX`."""

    @staticmethod
    def forward(idx: int, folder: Path, seconds: float) -> dict[str, Any]:
        note(folder, idx)
        mark = folder / f"running.{idx}"
        while True:
            try:
                os.symlink(str(os.getpid()), mark)  # appears together with what it says
                break
            except FileExistsError:
                if runs(other := holder(mark)):
                    (folder / f"twice.{idx}").write_text(f"{other} and {os.getpid()}\n")
                mark.unlink(missing_ok=True)  # of one that was killed
        time.sleep(seconds * (0.5 + idx % 5 / 4))  # half to one and a half times as long
        mark.unlink(missing_ok=True)
        return {"square": idx * idx}


def holder(mark: Path) -> int:
    """Return the process that runs an item; 0 where none does."""
    try:
        return int(os.readlink(mark))
    except FileNotFoundError:
        return 0


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def workers(folder: Path) -> dict[int, int]:
    """Return the processes that run an item now, and which."""
    found = {holder(mark): int(mark.name.split(".")[1]) for mark in folder.glob("running.*")}
    return {pid: idx for pid, idx in found.items() if pid and runs(pid)}
