"""`python -m benchmarks.simulated`: a thousand workers and more, simulated: where one driver is the limit.

The driver's side is the real one: pool, handshakes, loop, chunk sizes. The workers are connections of one other
process, which speak the channel's protocol and answer a chunk when its items would have been done: they compute
nothing, so that two cores hold any number of them. Measured are the driver's processor time per item, its memory,
and the share of their time that the workers are at an item.
"""

from __future__ import annotations

import argparse
import heapq
import json
import pickle
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT, memory, report
from benchmarks.tables import grid, number

WORKERS = [10, 100, 300, 1000, 2000]
SECONDS = [0.001, 0.01, 0.1, 1.0]  # of an item
LEAST = 5.0  # seconds of a run, were no time lost


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one number of workers with items of one length."""

    workers: int  # how many
    item_s: float  # seconds of an item
    items: int  # how many of them
    wall_s: float  # from the first worker's connection used to the last result
    cpu_s: float  # processor time of the driver meanwhile
    efficiency: float  # share of the workers' time that was spent in items
    resident: int  # bytes resident in the driver afterwards
    connect_s: float  # from the workers' start until all were connected

    @property
    def driver(self) -> float:
        """The share of one core that the driver took."""
        return self.cpu_s / self.wall_s


def same(x: int) -> int:
    """Stand for a function that takes time."""
    return x


# --- the driver ---


def measure(workers: int, item_s: float) -> Point:
    """Run enough items on so many simulated workers."""
    from espnet3.parallel.engine.work import Work
    from espnet3.parallel.pilots.driver import PilotRun
    from espnet3.parallel.pilots.pool import BACKLOG, Pool, SlotClaim
    from espnet3.parallel.pilots.protocol import RunSpec
    from espnet3.parallel.pilots.worker_cluster import PlainCluster

    class Slots:
        """The pool's slots, whose workers nobody looks at."""

        def claim(self) -> SlotClaim:
            return pool.claim()

        def check(self) -> None:
            return

        def last_heard(self, address: str) -> Any:
            return None

        def fall_back(self) -> bool:
            return False

    more_files(2 * workers + 200)
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    pool = Pool(listener, None)
    items = max(int(workers * LEAST / item_s) if workers * LEAST / item_s < 2_000_000 else 2_000_000, workers)
    begin = time.perf_counter()
    facts = {"address": pool.address, "key": pool.key.hex(), "workers": workers, "item_s": item_s}
    command = [sys.executable, "-m", "benchmarks.simulated", "--serve", json.dumps(facts)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as simulator:
        try:
            assert simulator.stdout is not None
            if simulator.stdout.readline() != "connected\n":
                raise RuntimeError("the simulated workers could not connect")
            connected = time.perf_counter() - begin
            run = PilotRun(Slots(), Work(range(items)), RunSpec(same), PlainCluster(), 60.0, None)
            cpu, begin, done = time.process_time(), time.perf_counter(), 0
            for _, block in run:
                done += len(block.values)
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        finally:
            pool.close()
            simulator.kill()
    if done != items:
        raise RuntimeError(f"{done} results of {items} items")
    share = items * item_s / (workers * wall)
    return Point(workers, item_s, items, wall, cpu, share, memory.resident(), connected)


# --- the workers ---


def serve(address: Any, key: str, workers: int, item_s: float) -> None:
    """Be so many workers until the driver closes its door."""
    from espnet3.parallel.pilots.channel import Channel, ChannelClosedError, connect
    from espnet3.parallel.pilots.protocol import Done, Hello

    more_files(workers + 200)
    selector = selectors.DefaultSelector()
    for k in range(workers):
        channel = connect(tuple(address), bytes.fromhex(key), timeout=60.0)
        channel.send(Hello(f"worker-{k}", f"sim://{k}", 1_000_000 + k, "simulated"))
        selector.register(channel, selectors.EVENT_READ, channel)
    print("connected", flush=True)
    answers: list[tuple[float, int, Channel, Any]] = []  # when each chunk is done, and what is said then
    free_at: dict[Channel, float] = {}

    def hear(channel: Channel) -> None:
        message = channel.recv()
        if message[0] == "run":
            channel.send(("ready", message[1], 0.0, 0.0))
        elif message[0] == "chunk":
            items, seconds = message[2], message[6]
            n = len(pickle.loads(items) if isinstance(items, bytes) else items)
            n = min(n, max(1, int(seconds / item_s) + 1))  # as the loop does: until the time is over
            now = time.perf_counter()
            took = n * item_s
            until = free_at[channel] = max(now, free_at.get(channel, 0.0)) + took
            done = Done([], 0, took, cpu=took)
            heapq.heappush(
                answers, (until, id(message), channel, ("done", message[1], tuple(done), [None] * n))
            )

    try:
        while True:
            pause = max(0.0, answers[0][0] - time.perf_counter()) if answers else None
            for key_, _ in selector.select(pause):
                hear(key_.data)
            now = time.perf_counter()
            while answers and answers[0][0] <= now:
                _, _, channel, answer = heapq.heappop(answers)
                channel.send(answer)
    except (ChannelClosedError, OSError):
        return


def more_files(n: int) -> None:
    """Raise the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(n, hard), hard))


# --- the report ---


def table(points: Sequence[Point]) -> str:
    """Return the figures as a table."""
    head = ["workers", "item, s", "items", "driver, of a core", "µs per item", "workers busy", "driver, MiB"]
    return grid(head, [_row(p) for p in points])


def _row(p: Point) -> list[str]:
    return [
        str(p.workers),
        f"{p.item_s:g}",
        f"{p.items:,}",
        f"{p.driver:.0%}",
        number(p.cpu_s / p.items * 1e6),
        f"{p.efficiency:.0%}",
        f"{p.resident / 2**20:.0f}",
    ]


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw the driver's share of a core, and how busy the workers are, over their number."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharex=True)
    for item_s in sorted({p.item_s for p in points}):
        own = sorted((p for p in points if p.item_s == item_s), key=lambda p: p.workers)
        at = [p.workers for p in own]
        left.plot(at, [100 * p.driver for p in own], marker="o", label=f"items of {item_s:g} s")
        right.plot(at, [100 * p.efficiency for p in own], marker="o")
    left.set(title="driver, % of one core", xlabel="workers", xscale="log")
    right.set(title="workers' time in items, %", xlabel="workers", ylim=(0, 105))
    left.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Measure each pair in a process of its own, print the table, write figures and plot."""
    parser = report.arguments("simulated", __doc__, workers=WORKERS, seconds=SECONDS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # the workers
    parser.add_argument(
        "--one", action="store_true", help=argparse.SUPPRESS
    )  # one driver: prints its figures
    args = parser.parse_args()
    if args.serve:
        serve(**json.loads(args.serve))
        return 0
    if args.one:
        print(json.dumps(asdict(measure(args.workers[0], args.seconds[0]))))
        return 0
    pairs = [(n, item_s) for item_s in args.seconds for n in args.workers]
    points = [Point(**report.child("simulated", "--one", "--workers", n, "--seconds", s)) for n, s in pairs]
    print(table(points))
    report.write(args.out, ["numpy"], points=[asdict(p) for p in points])
    try:
        plot(points, args.out.with_suffix(".svg"))
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install -r benchmarks/requirements.txt", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
