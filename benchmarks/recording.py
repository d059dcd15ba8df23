"""`python -m benchmarks.recording`: what recording the times of items costs a run with a folder.

W2 (items of 1 ms of processor time) with what the engine records and with that left out, in turn. In this process the
figure is processor time, which other programs hardly change; on two workers it is the time of the work by the clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from benchmarks import OUT, machine
from benchmarks.tables import grid
from benchmarks.work import spin_1ms
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
from espnet3.parallel.timing.recorder import ItemTimes, TimesRecorder

_WARM = 100  # items of a run before the measured ones


class Provider(EnvironmentProvider):
    """Has nothing for the items; where it is told to, its process records nothing from then on."""

    def build_env_local(self) -> dict[str, Any]:
        """Return no entries."""
        if not self.config["records"]:
            ItemTimes.of_steps = _no_times  # type: ignore[method-assign]  # in a process of this run alone
        return {}


class Spins(BaseRunner):
    """W2's items, with a result."""

    @staticmethod
    def forward(idx: int) -> int:
        """Spend 1 ms."""
        spin_1ms(idx)
        return idx


def _no_times(steps: Any, place: int = 0) -> ItemTimes:
    return ItemTimes()


def _nothing(*_: Any, **__: Any) -> None:
    return None


@contextmanager
def _left_out(records: bool) -> Iterator[None]:
    """Have the driver record nothing, where that is asked."""
    if records:
        yield
        return
    with patch.object(ItemTimes, "of_steps", _no_times), patch.object(TimesRecorder, "took", _nothing):
        yield


def seconds(workers: int, items: int, records: bool) -> float:
    """Return what one run takes: processor time in this process, the clock's time of the work on several workers."""
    set_parallel({"env": "local", "n_workers": workers, "idle_timeout": 0})
    with tempfile.TemporaryDirectory(prefix="espnet3-recording-") as folder, _left_out(records):
        runner = Spins(Provider({"records": records}), output_dir=folder, progress=False)
        begin = time.process_time()
        runner(range(items))
        if workers == 1:
            return time.process_time() - begin
        assert runner.summary is not None
        return runner.summary.seconds - runner.summary.start_seconds


def pairs(workers: int, items: int, n: int, take: Callable[[int, int, bool], float] = seconds) -> list[float]:
    """Return the ratio of recording to not recording of each of `n` pairs; every other one begins with recording."""
    for records in (True, False):
        take(workers, _WARM, records)
    found = []
    for k in range(n):
        order = (True, False) if k % 2 else (False, True)
        took = {records: take(workers, items, records) for records in order}
        found.append(took[True] / took[False])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=OUT / "recording.json")
    wanted = parser.parse_args(argv)
    ratios = {workers: pairs(workers, wanted.items, wanted.pairs) for workers in (1, 2)}
    rows = []
    for workers, found in ratios.items():
        low, _, high = quantiles(found, n=4)
        rows.append([f"{workers}", f"{median(found):.4f}", f"{low:.4f} to {high:.4f}", f"{len(found)}"])
    print(grid(["workers", "with recording", "middle half", "pairs"], rows))
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine.describe(()), "items": wanted.items, "ratios": ratios}
    wanted.out.write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
