"""What items do in the tests of this folder."""

import importlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.waiting import wait_until

SEEN: list[int] = []


def pid(x: int) -> int:
    return os.getpid()


def set_variable(x: int) -> None:
    os.environ["OWN_WORKERS"] = str(x)


def pid_of_two(x: int, folder: str) -> int:
    """Return the process once two have an item; item 0 changes its own."""
    Path(folder, str(x)).touch()
    wait_until(lambda: len(os.listdir(folder)) == 2)
    if x == 0:
        set_variable(x)
    return os.getpid()


def surroundings(x: int) -> tuple[str, str | None]:
    return os.getcwd(), os.environ.get("OWN_WORKERS")


def inverse(x: int) -> float:
    return 1 / x


def value_of(name: str) -> Any:
    return importlib.import_module(name).VALUE


def remember(x: int, folder: str) -> None:
    """Keep the item in the module; go on once two processes have."""
    SEEN.append(x)
    Path(folder, str(os.getpid())).touch()
    wait_until(lambda: len(os.listdir(folder)) >= 2)


def remembers(x: int) -> bool:
    """Whether the module has kept any."""
    return bool(SEEN)


def thread(x: int, folder: str) -> tuple[int, int]:
    """Return process and thread, once two threads of a process are there."""
    Path(folder, f"{os.getpid()}.{threading.get_ident()}").touch()

    def two_of_one() -> bool:
        names = os.listdir(folder)
        return len({name.partition(".")[0] for name in names}) < len(names)

    wait_until(two_of_one)
    return os.getpid(), threading.get_ident()


class Shared(EnvironmentProvider):
    """An event that the threads of a process share."""

    def build_env_local(self):
        return {"passed": threading.Event()}


class Wait(BaseRunner):
    """Item 0 waits for an item that only another thread of its process can run."""

    @staticmethod
    def forward(idx, passed):
        if idx == 0:
            assert passed.wait(600), "no other item was under way"
        else:
            passed.set()
        return idx * idx


def variable(_):
    return os.environ.get("ASKED_FOR")


def dies_once(x: int, folder: str) -> int:
    """Return the index, in the second process that tries; the first one ends."""
    mark = Path(folder) / str(x)
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return x


def end(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, how))
    threading.Event().wait()  # another thread may be given the signal


def thread_of(_: int) -> int:
    return threading.get_ident()


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {"k": 1}

    def build_worker_setup_fn(self) -> Any:
        return lambda: {"k": 1}


class Add(BaseRunner):
    @staticmethod
    def forward(idx: int, k: int) -> int:
        return idx + k
