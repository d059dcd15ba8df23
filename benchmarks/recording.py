"""`python -m benchmarks.recording`: what recording the times of items costs a run with a folder.

W2 (items of 1 ms of processor time) with what the engine records and with that left out, in turn. In this process the
figure is processor time, which other programs hardly change; on two workers it is the time of the work by the clock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from benchmarks import report
from benchmarks.systems.ours_runners import RUNNERS
from benchmarks.tables import grid
from benchmarks.work import spin_1ms
from espnet3.parallel import EnvironmentProvider, set_parallel
from espnet3.parallel.timing.recorder import ItemTimes, TimesRecorder

_WARM = 100  # items of a run before the measured ones


class Provider(EnvironmentProvider):
    """Has nothing for the items; where it is told to, its process records nothing from then on."""

    def build_env_local(self) -> dict[str, Any]:
        """Return no entries."""
        if not self.config["records"]:
            ItemTimes.of_steps = _no_times  # type: ignore[method-assign]  # in a process of this run alone
        return {}


def _no_times(steps: Any, place: int = 0) -> ItemTimes:
    return ItemTimes()


def seconds(workers: int, items: int, records: bool) -> float:
    """Return what one run takes: processor time in this process, the clock's time of the work on several workers."""
    set_parallel({"env": "local", "n_workers": workers, "idle_timeout": 0})
    with tempfile.TemporaryDirectory(prefix="espnet3-recording-") as folder, ExitStack() as stack:
        if not records:
            stack.enter_context(patch.object(ItemTimes, "of_steps", _no_times))
            stack.enter_context(patch.object(TimesRecorder, "took"))
        runner = RUNNERS[spin_1ms](Provider({"records": records}), output_dir=folder, progress=False)
        begin = time.process_time()
        runner(range(items))
        took = time.process_time() - begin
        assert runner.summary is not None
        return took if workers == 1 else runner.summary.seconds - runner.summary.start_seconds


def pairs(workers: int, items: int, n: int) -> list[float]:
    """Return the ratio of recording to not recording of each of `n` pairs; every other one begins with recording."""
    for records in (True, False):
        seconds(workers, _WARM, records)
    found = []
    for k in range(n):
        took = {
            records: seconds(workers, items, records)
            for records in ((True, False) if k % 2 else (False, True))
        }
        found.append(took[True] / took[False])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write the ratios."""
    args = report.arguments("recording", __doc__, pairs=20, items=5000).parse_args(argv)
    ratios = {workers: pairs(workers, args.items, args.pairs) for workers in (1, 2)}
    rows = []
    for workers, found in ratios.items():
        low, _, high = quantiles(found, n=4)
        rows.append([f"{workers}", f"{median(found):.4f}", f"{low:.4f} to {high:.4f}", f"{len(found)}"])
    print(grid(["workers", "with recording", "middle half", "pairs"], rows))
    report.write(args.out, [], items=args.items, ratios=ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
