"""What items do in the tests of this folder."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

SEEN: list[int] = []


class Model:
    """What an env holds."""


def pid(x: int) -> int:
    """Return the process."""
    return os.getpid()


def go_to(folder: str) -> None:
    """Change the process's folder."""
    os.chdir(folder)


def set_variable(x: int) -> None:
    """Change the process's environment."""
    os.environ["OWN_WORKERS"] = str(x)


def surroundings(x: int) -> tuple[str, str | None]:
    """Return folder and variable."""
    return os.getcwd(), os.environ.get("OWN_WORKERS")


def inverse(x: int) -> float:
    """Return 1/x."""
    return 1 / x


def value_of(name: str) -> Any:
    """Return a module's value."""
    return importlib.import_module(name).VALUE


def remember(x: int, folder: str) -> None:
    """Keep the item in the module; go on once two processes have."""
    SEEN.append(x)
    Path(folder, str(os.getpid())).touch()
    wait_until(lambda: len(os.listdir(folder)) >= 2)


def remembers(x: int) -> bool:
    """Whether the module has kept any."""
    return bool(SEEN)


def build_env() -> dict[str, Any]:
    """Return an env."""
    return {"model": Model()}


def has_env(x: int, model: Model) -> bool:
    """Whether the env came."""
    return isinstance(model, Model)


def envs_alive(x: int) -> int:
    """Return how many models are in memory."""
    gc.collect()
    return sum(isinstance(each, Model) for each in gc.get_objects())


def thread(x: int, folder: str) -> tuple[int, int]:
    """Return process and thread, once two threads of a process are there."""
    Path(folder, f"{os.getpid()}.{threading.get_ident()}").touch()

    def two_of_one() -> bool:
        names = os.listdir(folder)
        return len({name.partition(".")[0] for name in names}) < len(names)

    wait_until(two_of_one)
    return os.getpid(), threading.get_ident()
