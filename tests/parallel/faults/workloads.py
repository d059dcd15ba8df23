"""Runners and functions whose items fail in every way; importable by workers."""

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.parallel.faults.signs import once, tell

# --- what an item may do --------------------------------------------------------------------------


def segfault() -> None:
    """Die as after a wild pointer; the signal may land late."""
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def leave() -> None:
    os._exit(3)


def oom() -> None:
    """Die as if killed by the kernel's OOM killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def bad_value() -> None:
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise ValueError("bad item") from error


class HoldsLockError(Exception):
    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """Can be pickled, and not unpickled: `__init__` wants more than `args` has."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def unpicklable_error() -> None:
    raise HoldsLockError


def unloadable_error() -> None:
    raise TwoArgumentsError("one", "two")


def system_exit() -> None:
    sys.exit("the item wants to leave")


def unpicklable_result() -> Any:
    return threading.Lock()


def explode() -> None:
    raise LookupError("cannot be loaded")


class Unloadable:
    def __reduce__(self) -> Any:
        return explode, ()


def unloadable_result() -> Any:
    return Unloadable()


ERRORS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (bad_value, unpicklable_error, unloadable_error, system_exit)
}
RESULTS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (unpicklable_result, unloadable_result)}
FAULTS = {**ERRORS, **RESULTS, "segfault": segfault, "leave": leave, "oom": oom}

# --- providers and runners ----------------------------------------------------------------------------


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return dict(self.config)


def faulty(fault: str, *at: Any) -> Provider:
    """Return the provider of a runner whose items `at` have a fault."""
    return Provider({"fault": fault, "at": at})


class Square(BaseRunner):
    @staticmethod
    def forward(idx: int, fault: str, at: tuple[int, ...]) -> Any:
        return FAULTS[fault]() if idx in at else idx * idx


class SquareBatches(Square):
    @staticmethod
    def batch_forward(indices: list[int], fault: str, at: tuple[int, ...]) -> list[Any]:
        return [FAULTS[fault]() if i in at else i * i for i in indices]


class SquareByCost(Square):
    @staticmethod
    def item_cost(idx: int) -> float:
        return float(idx)


class SquareFiles(Square):
    @staticmethod
    def open_writers(shard_dir: Path, **_: Any) -> Any:
        return (shard_dir / "squares.txt").open("w")

    @staticmethod
    def close_writers(writers: Any, state: dict[str, Any], **_: Any) -> None:
        writers.write("".join(f"{result}\n" for result in state["records"]))
        writers.close()


class SlowSquare(Square):
    """The same, a hundredth of a second each, so that neighbours are in flight when one crashes."""

    @staticmethod
    def forward(idx: int, fault: str, at: tuple[int, ...]) -> Any:
        time.sleep(0.01)
        return Square.forward(idx, fault, at)


class CrashOnceFiles(BaseRunner):
    """Some items kill their worker the first time they are run."""

    @staticmethod
    def forward(idx: int, root: str, at: tuple[int, ...]) -> int:
        if idx in at and once(f"{root}/{idx}"):
            FAULTS["leave"]()
        return idx * idx

    open_writers = staticmethod(SquareFiles.open_writers)
    close_writers = staticmethod(SquareFiles.close_writers)


def fail_at_7(x: int, fault: str) -> int:
    return FAULTS[fault]() if x == 7 else x * x


class Gated(BaseRunner):
    """Squares; the item at the gate says where it runs and waits, the first time (it is killed there)."""

    @staticmethod
    def forward(idx: int, gates: tuple[int, ...], root: str) -> int:
        if idx in gates and once(f"{root}/gate-{idx}"):
            tell(f"{root}/mail")
            time.sleep(100)
        return idx * idx


class SlowGated(Gated):
    @staticmethod
    def forward(idx: int, gates: tuple[int, ...], root: str) -> int:
        time.sleep(0.001)
        return Gated.forward(idx, gates, root)


class TwoGates(BaseRunner):
    """Squares; each of two items waits, the first time, until both are there and killed."""

    forward = staticmethod(Gated.forward)

    @staticmethod
    def item_cost(idx: int) -> float:
        return 1000.0 if idx in (300, 600) else 1.0


class DyingProvider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        tell(self.config["mail"], "died")
        os._exit(3)


class DiesLate(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        if once(f"{self.config['root']}/late"):
            time.sleep(9)
            os._exit(3)
        return {"gates": (), "root": ""}


def pid_of(_: Any) -> int:
    return os.getpid()


def announce_50(x: int, root: str) -> int:
    """Return the item; the 50th says that it runs, and takes a second."""
    if x == 50 and once(f"{root}/50"):
        tell(f"{root}/mail")
        time.sleep(1.0)
    return x


# --- envs that cannot be built ------------------------------------------------------------------------


def raising_env() -> dict[str, Any]:
    raise ValueError("no such model: large-v9")


def exiting_env() -> dict[str, Any]:
    sys.exit("no GPU here")


def listing_env() -> Any:
    return ["model", "dataset"]


def missing_module_env() -> dict[str, Any]:
    import no_such_module_anywhere

    return {"module": no_such_module_anywhere}


def hanging_env() -> dict[str, Any]:
    time.sleep(100)
    return {}


ENVS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (raising_env, exiting_env, listing_env, missing_module_env, hanging_env)
}


class BadProvider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return ENVS[self.config]()


class TouchFile(BaseRunner):
    @staticmethod
    def forward(idx: int, path: str) -> int:
        Path(path).touch()
        return idx


# --- items that draw -------------------------------------------------------------------------------------


class Draws(BaseRunner):
    """Each item draws from `random` and numpy, and from torch where the config says so."""

    @staticmethod
    def forward(idx: Any, torch: bool = False, root: str = "") -> Any:
        import random

        import numpy as np

        if root and idx == 50 and once(f"{root}/half"):
            tell(f"{root}/mail")
            time.sleep(100)
        drawn: list[Any] = [idx, random.random(), float(np.random.random()), random.gauss(0, 1)]
        if torch:
            import torch as library

            drawn.append(float(library.rand(1)))
        return drawn


class DrawsInBatches(Draws):
    @staticmethod
    def batch_forward(indices: list[Any], torch: bool = False, root: str = "") -> list[Any]:
        return [Draws.forward(i, torch, root) for i in indices]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def indices_alike() -> list[Any]:
    """Return indices whose repr, or order, is another one in another process."""
    import numpy as np

    return [{"a", "b", "c"}, {"k": {"x", "y"}}, Named("u"), ("a", frozenset("bcd")), np.arange(2000)]


class DrawsSlowly(BaseRunner):
    """Each item draws, sleeps, and draws again, so that threads of a process get in between."""

    @staticmethod
    def forward(idx: int) -> tuple[float, float, float]:
        import random

        first = random.random()
        time.sleep(0.002)
        second = random.random()
        time.sleep(0.002)
        return first, second, random.random()


class DrawsInHooks(DrawsSlowly):
    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> Any:
        return random.random() and open(shard_dir / "draws", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers: Any, result: Any, state: dict[str, Any], **env: Any) -> None:
        random.random()
        writers.write(json.dumps(result) + "\n")

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        random.random()
        writers.close()


class FailsTwice(BaseRunner):
    @staticmethod
    def forward(idx: int, root: str, at: tuple[int, ...]) -> int:
        if idx in at and (once(f"{root}/{idx}-1") or once(f"{root}/{idx}-2")):
            raise OSError(f"item {idx} has no luck yet")
        return idx * idx


class FailsTwiceInBatches(FailsTwice):
    @staticmethod
    def batch_forward(indices: list[int], root: str, at: tuple[int, ...]) -> list[int]:
        return [FailsTwice.forward(i, root, at) for i in indices]


class FailsEvery(BaseRunner):
    @staticmethod
    def forward(idx: int, every: int) -> int:
        if idx % every == 0:
            raise ValueError("one of many")
        return idx


# --- runs of other shapes ----------------------------------------------------------------------------


class Nested(BaseRunner):
    @staticmethod
    def forward(idx: int) -> Any:
        inner = Draws(Provider({}), seed=1, progress=False)
        return inner(range(idx, idx + 3))


class BadHook(Square):
    @staticmethod
    def forward(idx: int, hook: str, act: str) -> int:
        return idx * idx

    @staticmethod
    def open_writers(shard_dir: Path, hook: str, act: str) -> str:
        if hook == "open_writers" and shard_dir.name == "split.3":
            FAULTS[act]()
        return shard_dir.name

    @staticmethod
    def write_record(writers: str, result: Any, state: dict[str, Any], hook: str, act: str) -> None:
        if hook == "write_record" and writers == "split.3":
            FAULTS[act]()

    @staticmethod
    def close_writers(writers: str, state: dict[str, Any], hook: str, act: str) -> None:
        if hook == "close_writers" and writers == "split.3":
            FAULTS[act]()


class FailsThenEnds(Square):
    """In one shard the disk seems full to write_record, and close_writers ends the process."""

    @staticmethod
    def forward(idx: int) -> int:
        return idx * idx

    @staticmethod
    def open_writers(shard_dir: Path) -> str:
        return shard_dir.name

    @staticmethod
    def write_record(writers: str, result: Any, state: dict[str, Any]) -> None:
        if writers == "split.3":
            raise OSError(28, "No space left on device")

    @staticmethod
    def close_writers(writers: str, state: dict[str, Any]) -> None:
        if writers == "split.3":
            leave()


def sleeps_for_long(x: int, root: str) -> int:
    """Say that the item has begun, and sleep for longer than any test."""
    tell(f"{root}/mail", f"item {os.getpid()}")
    time.sleep(100)
    return x


def freezes(x: int, at: int, mail: str, marker: str = "") -> int:
    """Stop this process at one item, as a debugger or a halted node does: always, or once where a marker is given."""
    if x == at and (not marker or once(marker)):
        tell(mail, str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # the signal may land late
    return x


def is_quiet(x: int, seconds: float) -> int:
    """Give no sign of life for a while, but that the process lives."""
    if x == 0:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return x
