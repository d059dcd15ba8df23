"""`python -m benchmarks.mixed`: twenty mixed loads beside the best schedule, which a simulator finds.

Items sleep, so that their length is known on any machine. The simulator has the same workers without any cost of their
own. It gives the next item to the first that is free: in the caller's order, or by the costs that `item_cost` says,
the largest first. No schedule that knows as much can promise more.
"""

from __future__ import annotations

import heapq
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from benchmarks import report, tables
from espnet3.parallel import BaseRunner, EnvironmentProvider, parallel_map, set_parallel

# of a worker: when it comes, how many times as long it takes, when it is lost
Life: TypeAlias = tuple[float, float, float]
SHARE, SECONDS = 0.05, 0.1  # of the best schedule, and by the clock: one of them is what a run may take more


@dataclass(frozen=True, slots=True)
class Load:
    """A load: lengths of items, and the workers that have it."""

    name: str
    seconds: Sequence[float]  # of each item
    costs: Sequence[float] | None = None  # what `item_cost` says, where it is asked
    slow: float = 1.0  # how many times as long the first worker takes
    late: float = 0.0  # seconds after the others at which the last worker joins


def loads(workers: int) -> list[Load]:
    """Return the twenty."""
    draw = random.Random(5)  # noqa: S311  # lengths, not secrets
    few, many = [1.0] * workers, [0.05] * (20 * workers)
    even, spread = [0.1] * (16 * workers), [draw.uniform(0.05, 0.4) for _ in range(8 * workers)]
    tail = [min(1.0, 0.05 * draw.paretovariate(1.2)) for _ in range(12 * workers)]
    shuffled = draw.sample([*few, *many], len(few) + len(many))
    shapes = {
        "long first": few + many,
        "long last": many + few,
        "long among short": shuffled,
        "one huge first": [2.0, *many],
        "one huge last": [*many, 2.0],
        "even": even,
        "uniform": spread,
        "heavy tail": tail,
        "growing": sorted(spread),
        "one more than workers": [0.5] * (workers + 1),
    }
    wrong = [s * (10 if k % 2 else 0.1) for k, s in enumerate(shuffled)]
    return [
        *(Load(name, seconds) for name, seconds in shapes.items()),
        *(
            Load(f"{name}, with costs", shapes[name], shapes[name])
            for name in ("long last", "one huge last", "heavy tail")
        ),
        Load("long among short, costs wrong by ten", shuffled, wrong),
        Load("heavy tail, costs all the same", tail, [1.0] * len(tail)),
        *(
            Load(f"{name}, a worker of half the speed", shapes[name], slow=2.0)
            for name in ("even", "long first", "heavy tail")
        ),
        *(Load(f"{name}, a worker 1 s late", shapes[name], late=1.0) for name in ("even", "uniform")),
    ]


def best(load: Load, workers: int) -> float:
    """Return the seconds of the simulated schedule."""
    seconds = list(load.seconds)
    if load.costs:
        seconds = [seconds[k] for k in sorted(range(len(seconds)), key=lambda k: -load.costs[k])]
    return schedule(
        seconds,
        [
            (load.late if k == workers - 1 else 0.0, load.slow if k == 0 else 1.0, float("inf"))
            for k in range(workers)
        ],
    )


def schedule(seconds: Iterable[float], lives: Iterable[Life]) -> float:
    """Return when the last item is done, if each goes to the worker that is free first, and again if that is lost."""
    free, end, items = list(lives), 0.0, deque(seconds)
    heapq.heapify(free)
    while items:
        at, pace, until = free[0]
        done = at + pace * items[0]
        if done > until:  # its worker is lost meanwhile
            heapq.heappop(free)
            continue
        items.popleft()
        heapq.heapreplace(free, (done, pace, until))
        end = max(end, done)
    return end


class Provider(EnvironmentProvider):
    """Numbers the processes that build an env, and has the last one come late."""

    def build_env_local(self) -> dict[str, Any]:
        """Return the lengths of items in this process."""
        number = next(k for k in range(1000) if _is_first(Path(self.config["folder"], str(k))))
        if number == self.config["workers"] - 1:
            time.sleep(self.config["late"])
        pace = self.config["slow"] if number == 0 else 1.0
        return {"lengths": [pace * seconds for seconds in self.config["seconds"]]}


def _is_first(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Sleep(BaseRunner):
    """Sleeps as long as the load says."""

    @staticmethod
    def forward(idx: int, lengths: list[float]) -> int:
        """Run one item."""
        time.sleep(lengths[idx])
        return idx


class SleepWithCost(Sleep):
    """Says beforehand how long."""

    costs: Sequence[float] = ()

    def item_cost(self, idx: int) -> float:
        """Return what the load says."""
        return self.costs[idx]


def measure(load: Load, workers: int) -> float:
    """Return the seconds of the work, on processes that are there."""
    set_parallel({"env": "local", "n_workers": workers, "idle_timeout": 600})
    parallel_map(abs, range(workers))
    with TemporaryDirectory(prefix="espnet3-mixed-") as folder:
        facts = {"folder": folder, "workers": workers, "seconds": list(load.seconds)}
        provider = Provider({**facts, "slow": load.slow, "late": load.late})
        runner = (SleepWithCost if load.costs else Sleep)(provider, progress=False)
        runner.costs = load.costs
        if list(runner(range(len(load.seconds)))) != list(range(len(load.seconds))):
            raise RuntimeError(f"{load.name}: not the results of a loop")
        assert runner.summary is not None
        return runner.summary.seconds - runner.summary.start_seconds


def main() -> int:
    """Measure, print the table, write the figures; 0 where every load is within the limits."""
    args = report.arguments("mixed", __doc__, workers=4, rounds=3).parse_args()
    found = loads(args.workers)
    ways: dict[str, Callable[[], float]] = {
        load.name: lambda load=load: measure(load, args.workers) for load in found
    }
    taken = report.in_turn(ways, args.rounds)
    rows, late = [], 0
    for load in found:
        ideal, took = best(load, args.workers), median(taken[load.name])
        is_late = took > ideal + max(SHARE * ideal, SECONDS)
        late += is_late
        more = [f"{ideal:.2f}", f"{took:.2f}", report.spread(taken[load.name]), f"{took - ideal:+.2f}"]
        rows.append([load.name, *more, f"{took / ideal - 1:+.1%}", "late" if is_late else ""])
    print(tables.grid(["load", "best, s", "ours, s", "min .. max", "s", "%", ""], rows))
    report.write(args.out, [], loads=[asdict(load) for load in found], taken=taken)
    longer = [
        (ideal := best(load, args.workers), 100 * median(taken[load.name]) / ideal - 100) for load in found
    ]
    report.plot(args.out.with_suffix(".svg"), "best schedule, s", ["longer than that, %"], {"loads": longer})
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
