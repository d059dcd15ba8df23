"""The files of a dataset's statistics: of one shard, and of a whole split."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from espnet3.components.data.exact_sums import ExactSums
from espnet3.components.data.files import write_atomic, write_text_atomic

logger = logging.getLogger(__name__)

_SUMS = "sums.json"


@dataclass(frozen=True, slots=True)
class FeatureStats:
    """Statistics of one feature over a split.

    Attributes:
        count: Frames; of a feature without frames, items.
        sum: Their sum in each dimension, an array.
        sum_square: The sum of their squares.
    """

    count: int
    sum: Any
    sum_square: Any


@dataclass(frozen=True, slots=True)
class ItemSums:
    """What one feature of one item adds."""

    count: int  # of frames
    shape: tuple[int, ...]  # of a frame
    sum: Any  # over the frames, an array of that shape
    sum_square: Any


@dataclass(frozen=True, slots=True)
class ItemStats:
    """What one item adds to the statistics."""

    uid: str
    shapes: Mapping[str, str]  # of inputs and features by name, as in "120,80"
    sums: Mapping[str, ItemSums]  # of features by name


@dataclass(slots=True)
class _Total:
    """The sums of one feature so far."""

    shape: tuple[int, ...]
    count: int = 0
    sum: ExactSums = field(default_factory=ExactSums)
    sum_square: ExactSums = field(default_factory=ExactSums)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "count": self.count,
            "sum": [f"{total:x}" for total in self.sum.totals],
            "sum_square": [f"{total:x}" for total in self.sum_square.totals],
        }

    def take(self, written: Mapping[str, Any]) -> None:
        self.count += written["count"]
        self.sum.merge(ExactSums(int(total, 16) for total in written["sum"]))
        self.sum_square.merge(ExactSums(int(total, 16) for total in written["sum_square"]))


def _total(totals: dict[str, _Total], name: str, shape: Iterable[int], where: str) -> _Total:
    """Return the sums of a feature, new where there are none."""
    known = totals.setdefault(name, _Total(tuple(shape)))
    if known.shape != tuple(shape):
        raise ValueError(
            f"{where}: a frame of the feature {name!r} has the shape {tuple(shape)}, and had {known.shape} before: "
            "features are summed frame by frame, so that all frames must be alike"
        )
    return known


class ShardWriter:
    """Writes the files of one shard: shapes as the items come, sums at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, IO[str]] = {}
        self.opened = ExitStack()
        self.totals: dict[str, _Total] = {}

    def add(self, item: ItemStats) -> None:
        """Add an item."""
        for name, shape in item.shapes.items():
            if name not in self.files:
                file = (self.folder / f"{name}_shape").open("w", encoding="utf-8")
                self.files[name] = self.opened.enter_context(file)
            self.files[name].write(f"{item.uid} {shape}\n")
        for name, sums in item.sums.items():
            total = _total(self.totals, name, sums.shape, f"item {item.uid!r}")
            total.count += sums.count
            total.sum.add(sums.sum)
            total.sum_square.add(sums.sum_square)

    def close(self) -> None:
        """Write the sums."""
        self.opened.close()
        content = {
            "inputs": [name for name in self.files if name not in self.totals],
            "features": {name: total.to_json() for name, total in self.totals.items()},
        }
        (self.folder / _SUMS).write_text(json.dumps(content), encoding="utf-8")


def merge_stats(folder: Path, shard_dirs: Sequence[Path]) -> dict[str, FeatureStats]:
    """Put the files of all shards together, in the order of the shards; return the statistics by feature."""
    totals: dict[str, _Total] = {}
    inputs: set[str] = set()
    for shard in shard_dirs:
        content = json.loads((shard / _SUMS).read_text(encoding="utf-8"))
        inputs.update(content["inputs"])
        for name, written in content["features"].items():
            _total(totals, name, written["shape"], str(shard)).take(written)
    names = sorted(inputs - set(totals))
    for name in (*names, *sorted(totals)):
        _concatenate([shard / f"{name}_shape" for shard in shard_dirs], folder / f"{name}_shape")
    stats = {name: _write_sums(folder / f"{name}_stats.npz", totals[name]) for name in sorted(totals)}
    write_text_atomic(folder / "stats_keys", "".join(f"{name}\n" for name in stats))
    write_text_atomic(folder / "batch_keys", "".join(f"{name}\n" for name in names))
    logger.info("statistics of %s in %s", ", ".join(stats) or "no feature", folder)
    return stats


def _write_sums(path: Path, total: _Total) -> FeatureStats:
    import numpy  # of the extra `recipe`

    arrays = [numpy.array(sums.values()).reshape(total.shape) for sums in (total.sum, total.sum_square)]
    stats = FeatureStats(total.count, *arrays)
    entries = {"count": stats.count, "sum": stats.sum, "sum_square": stats.sum_square}
    write_atomic(path, lambda file: numpy.savez(file, **entries))
    return stats


def _concatenate(parts: Sequence[Path], target: Path) -> None:
    seen: set[str] = set()

    def write(file: IO[bytes]) -> None:
        for part in parts:
            if not part.is_file():  # a shard whose items all lack it has no such file
                continue
            for line in part.read_text(encoding="utf-8").splitlines(keepends=True):
                uid = line.partition(" ")[0]
                if uid in seen:
                    raise ValueError(f"two items have the id {uid!r}: a line of {target.name} is one item")
                seen.add(uid)
                file.write(line.encode())

    write_atomic(target, write)
