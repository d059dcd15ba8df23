"""Runners whose calls can be counted from outside: workers import this by name."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.waiting import wait_until


class Provider(EnvironmentProvider):
    """The env is the config, without what is not for `forward`."""

    def build_env_local(self) -> dict[str, Any]:
        return {"log": None, "stop": None, **self.config}


def note(log: str | None, idx: Any) -> None:
    if log is not None:
        fd = os.open(f"{log}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, b"%d\n" % idx)
        os.close(fd)


def calls(log: Path) -> Counter[int]:
    files = log.parent.glob(f"{log.name}.*")
    return Counter(int(line) for file in files for line in file.read_text().splitlines())


class Squares(BaseRunner):
    """Squares; fails from the index `stop` on while the file of that name exists."""

    @staticmethod
    def forward(idx: int, log: str | None, stop: Any) -> dict[str, Any]:
        note(log, idx)
        if stop is not None and idx >= stop[0] and os.path.exists(stop[1]):
            raise ValueError(f"stopped at {idx}")
        return {"square": idx * idx, "text": f"«{idx}»"}

    @staticmethod
    def batch_forward(indices: list[int], log: str | None, stop: Any) -> list[dict[str, Any]]:
        return [Squares.forward(idx, log, stop) for idx in indices]


class KeptSquares(BaseRunner):
    """Squares of over ten milliseconds, each of which ends once the one before it in its process is on disk."""

    before: int | None = None

    @staticmethod
    def forward(idx: int, log: str | None, run: str, **_: Any) -> int:
        note(log, idx)
        time.sleep(0.015)
        before, KeptSquares.before = KeptSquares.before, idx
        wait_until(lambda: before is None or is_on_disk(Path(run), before))
        return idx * idx


def is_on_disk(run: Path, idx: int) -> bool:
    """Tell whether a split of a run folder has the outcome of an index."""
    line = f'"index":{idx},'.encode()
    return any(line in path.read_bytes() for path in run.glob("split.*/results.jsonl"))


class Values(BaseRunner):
    @staticmethod
    def forward(idx: int, values: Any) -> Any:
        return values[idx]


class Files(BaseRunner):
    """Writes its squares to one file a shard, and puts them together."""

    @staticmethod
    def forward(idx: int, log: str | None, stop: Any) -> int:
        return Squares.forward(idx, log, stop)["square"]

    @staticmethod
    def open_writers(shard_dir: Path, **_: Any) -> Any:
        return open(Path(shard_dir) / "squares.txt", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers: Any, result: int, state: dict[str, Any], **_: Any) -> None:
        writers.write(f"{state['index']} {result}\n")

    @staticmethod
    def close_writers(writers: Any, state: dict[str, Any], **_: Any) -> None:
        writers.close()


class Changes(BaseRunner):
    """Changes its items, as code for samples does; item 3 fails while the file `stop` exists, which may be for once."""

    @staticmethod
    def forward(item: dict[str, Any], log: str | None, stop: str) -> int:
        number = item.pop("id")
        note(log, number)
        item["audio"] = np.zeros(4)
        item["source"]["words"].pop()
        if number == 3 and os.path.exists(stop):
            if Path(stop).read_text() == "once":
                os.unlink(stop)
            raise ValueError("stopped at 3")
        return len(item["source"]["words"])

    @staticmethod
    def batch_forward(items: list[dict[str, Any]], log: str | None, stop: str) -> list[int]:
        return [Changes.forward(items.pop(0), log, stop) for _ in range(len(items))]


class ChangedFiles(Changes):
    """Changes them in its writers, too; the folder keeps its results."""

    @staticmethod
    def write_record(writers: Any, result: int, state: dict[str, Any], **_: Any) -> None:
        state["index"].pop("id")

    def write_outputs(self, indices: Any, results: Any) -> None: ...


class MergedFiles(Files):
    def merge(self, shard_dirs: list[Path]) -> str:
        return "".join((folder / "squares.txt").read_text() for folder in shard_dirs)


def end_as_told(run: Path) -> None:
    """End once as the file `end` beside a run says: with an error, or with the process."""
    told = run.parent / "end"
    if told.exists():
        how = told.read_text()
        told.unlink()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no room for the whole")


class MergesAsTold(MergedFiles):
    def merge(self, shard_dirs: list[Path]) -> str:
        end_as_told(Path(self.output_dir))
        return super().merge(shard_dirs)


class WritesAsTold(Squares):
    def write_outputs(self, indices: Any, results: Any) -> None:
        end_as_told(Path(self.output_dir))


BAD = 17  # the item that hangs


class Items(BaseRunner):
    @staticmethod
    def forward(idx: int, log: str | None, **_: Any) -> int:
        note(log, idx)
        if idx == BAD:
            time.sleep(1000)
        return idx * idx


class Shards(Files):
    forward = staticmethod(Items.forward)
    write_record = staticmethod(BaseRunner.write_record)  # whose results the folder keeps


class Odd:
    pass
