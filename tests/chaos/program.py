"""The program that is disturbed: real work on a run folder. `python program.py SETTINGS`, as JSON.

It reports to the harness through a named pipe. The pipe is the harness's alone, so that the
program's own files are those of any run. A script without a `__main__` guard: workers never import it.
"""

import hashlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

RECORD = "=cBi"  # what, in which start, a number; far below what a pipe takes as a whole
ITEM, TAKEN, PHASE = b"i", b"t", b"p"
OPENING, MERGING, ENDED = range(3)  # phases
START = "CHAOS_START"  # environment variable: the number of this start, which workers inherit
BAD = 31  # of so many items one fails


def report(pipe: int, what: bytes, number: int) -> None:
    os.write(pipe, struct.pack(RECORD, what, int(os.environ[START]), number))


def cost_of(idx: int) -> int:
    """Return an item's cost: 1 to 5, about as many milliseconds."""
    return 1 + (idx * 37) % 5


def compute(idx: int) -> dict[str, Any]:
    """Return an item's result, after some milliseconds of real work."""
    digest = hashlib.pbkdf2_hmac("sha256", b"item %d" % idx, b"chaos", 1000 * cost_of(idx)).hex()
    if idx % BAD == 7:
        raise ValueError(f"item {idx} is bad")
    return {"item": idx, "digest": digest[:16], "share": 1 / (idx + 1)}


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {"pipe": os.open(self.config["pipe"], os.O_WRONLY)}


class Items(BaseRunner):
    @staticmethod
    def forward(idx: int, pipe: int) -> dict[str, Any]:
        report(pipe, ITEM, idx)
        return compute(idx)

    @staticmethod
    def batch_forward(indices: list[int], pipe: int) -> list[dict[str, Any]]:
        """Compute several; one that fails is seen before any is computed, so that none is computed twice."""
        if len(indices) > 1 and any(idx % BAD == 7 for idx in indices):
            raise ValueError("one of this batch is bad")
        return [Items.forward(idx, pipe) for idx in indices]

    def item_cost(self, idx: int) -> float:
        return cost_of(idx)


class Files(Items):
    @staticmethod
    def open_writers(shard_dir: Path, **_: Any) -> Any:
        return open(shard_dir / "part.txt", "w")

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **_: Any) -> None:
        writers.write(f"{result['item']} {result['digest']}\n")
        writers.flush()

    @staticmethod
    def close_writers(writers: Any, state: Any, **_: Any) -> None:
        writers.close()

    def merge(self, shard_dirs: list[Path]) -> int:
        """Put all files together; the file appears whole."""
        assert self.output_dir is not None
        parts = [(folder / "part.txt").read_bytes() for folder in shard_dirs]
        whole = self.output_dir / "all.txt"
        whole.with_name("all.part").write_bytes(b"".join(parts))
        whole.with_name("all.part").replace(whole)
        return len(parts)


def watch(pipe: int) -> None:
    """Have the driver report how many items it hands out at a time, and when it merges."""
    from espnet3.parallel.engine.work import Chunk, Work
    from espnet3.parallel.ledger.folder import OpenRun

    take, merge = Work.take, OpenRun.merge

    def take_and_report(self: Work, units: float, most: int, slots: int = 1) -> Chunk | None:
        chunk = take(self, units, most, slots)
        if chunk is not None:  # an item may be a shard, which holds items of its own
            report(pipe, TAKEN, sum(len(getattr(item, "items", "1")) for item in chunk.items))
        return chunk

    def merge_and_report(self: OpenRun, finished: bool = True) -> Any:
        report(pipe, PHASE, MERGING)
        return merge(self, finished)

    Work.take = take_and_report  # type: ignore[method-assign]  # the places where the harness looks in
    OpenRun.merge = merge_and_report  # type: ignore[method-assign]


def main(settings: dict[str, Any]) -> None:
    pipe = os.open(settings["pipe"], os.O_WRONLY)
    watch(pipe)
    report(pipe, PHASE, OPENING)
    if settings["workers"] > 1:
        set_parallel({"env": "local", "n_workers": settings["workers"]})
    runner = {"items": Items, "files": Files}[settings["variant"]](
        Provider({"pipe": settings["pipe"]}),
        output_dir=settings["folder"],
        batch_size=settings["batch_size"],
        resume=settings["resume"],
        on_error="record",
        progress=False,
    )
    runner(range(settings["items"]))
    report(pipe, PHASE, ENDED)
    assert runner.summary is not None
    print(
        f"computed {runner.summary.items}, kept {runner.summary.kept}, lost {runner.summary.deaths} workers"
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
