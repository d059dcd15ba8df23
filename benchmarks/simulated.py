"""`python -m benchmarks.simulated`: thousands of workers, some of them slow or lost, or all of them far away.

The driver's side is the real one: pool, handshakes, loop, chunk sizes. The workers are connections of one other
process, which speak the channel's protocol and answer a chunk when its items would have been done: they compute
nothing, so that two cores hold any number of them. Measured are the driver's processor time per item, its memory,
and how near its schedule comes to the best one of workers without any cost. Behind a link (`--trip`) the workers are
real ones, threads of one process whose items sleep, and a relay holds back every byte for half a round trip.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import json
import os
import pickle
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import ROOT, memory, mixed, report
from benchmarks.tables import grid, number

WORKERS = [10, 100, 300, 1000, 2000]
SECONDS = [0.001, 0.01, 0.1, 1.0]  # of an item
AGAIN = 5.0  # seconds from the loss of a worker until another has taken its place


@dataclass(frozen=True, slots=True)
class Case:
    """Workers, and items for them."""

    workers: int  # how many
    item_s: float  # seconds of an item
    length: float = 5.0  # seconds of a run, were no time lost; 2,000,000 items at most
    slow: int = 0  # workers that take ten times as long
    lost: float = 0.0  # workers that are lost in a minute
    trip: float = 0.0  # seconds of a round trip to real workers; 0: simulated ones

    @property
    def items(self) -> int:
        """How many items."""
        return max(min(int(self.workers * self.length / self.item_s), 2_000_000), self.workers)

    def lives(self) -> list[mixed.Life]:
        """Return when each worker comes, how long it takes, and when it is lost."""
        paces = [10.0 if k < self.slow else 1.0 for k in range(self.workers)]
        since, lives = [0.0] * self.workers, []
        for n in range(1, int(self.lost * self.length / 10) + 1):  # six times as long: a run may be late
            k, at = 7 * n % self.workers, n * 60 / self.lost
            if at > since[k]:
                lives.append((since[k], paces[k], at))
                since[k] = at + AGAIN
        return lives + [(begin, pace, float("inf")) for begin, pace in zip(since, paces, strict=True)]


def nap(x: int, seconds: float) -> int:
    """Take time."""
    time.sleep(seconds)
    return x


# --- the driver ---


def measure(case: Case) -> dict[str, Any]:
    """Run the items of a case; return the figures of the driver."""
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.engine.work import Work
    from espnet3.parallel.pilots.driver import PilotRun
    from espnet3.parallel.pilots.pool import BACKLOG, Pool, RunSlots
    from espnet3.parallel.pilots.protocol import RunSpec
    from espnet3.parallel.records import Policy

    more_files(2 * case.workers + 200)
    slots = RunSlots()  # of workers that nothing looks at
    slots.pool = pool = Pool(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG), None)
    begin = time.perf_counter()
    with other("relay", {"address": pool.address, "trip": case.trip}) as relay:
        facts = {"address": json.loads(relay), "key": pool.key.hex()}
        with other("work" if case.trip else "simulate", facts, case):
            connected = time.perf_counter() - begin
            # workers are lost by themselves, now and then two over one item
            spec = RunSpec(functools.partial(nap, seconds=case.item_s), policy=Policy(poison_after=1000))
            config = ParallelConfig(frozen_timeout=None)
            run = PilotRun(slots, Work(range(case.items)), spec, config)
            cpu, begin, done = time.process_time(), time.perf_counter(), 0
            for _, block in run:
                done += len(block.values)
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
            pool.close()
    if done != case.items:
        raise RuntimeError(f"{done} results of {case.items} items")
    return {
        "case": asdict(case),
        "wall_s": wall,  # from the first worker's connection used to the last result
        "cpu_s": cpu,  # of the driver meanwhile
        "efficiency": mixed.schedule([case.item_s] * case.items, case.lives()) / wall,
        "resident": memory.resident(),
        "connect_s": connected,
    }


@contextmanager
def other(*words: object) -> Iterator[str]:
    """Run this module in another process for a block of code; yield the first line that it prints."""
    texts = [json.dumps(asdict(word) if isinstance(word, Case) else word) for word in words[1:]]
    command = [sys.executable, "-m", "benchmarks.simulated", "--role", str(words[0]), *texts]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)} did not start; see what it printed above")
            yield line
        finally:
            process.kill()


# --- the workers ---


class Workers:
    """The simulated workers of a case."""

    def __init__(self, address: Any, key: str, case: Case) -> None:
        more_files(case.workers + 200)
        self.door, self.item_s = (tuple(address), bytes.fromhex(key)), case.item_s
        self.selector = selectors.DefaultSelector()
        self.count = itertools.count()
        self.begin = time.perf_counter()
        self.due: list[tuple[float, int, Callable[..., None], Any]] = []  # what is to be done when
        self.free_at: dict[Any, float] = {}  # of those that are there
        for since, pace, until in case.lives():
            if since:
                self.later(since, self.come, pace, until)
            else:
                self.come(pace, until)
        print("connected", flush=True)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.begin

    def later(self, at: float, do: Callable[..., None], *words: Any) -> None:
        """Note what is to be done then."""
        heapq.heappush(self.due, (at, next(self.count), do, words))

    def come(self, pace: float, until: float) -> None:
        """Connect a worker."""
        from espnet3.parallel.pilots.channel import connect
        from espnet3.parallel.pilots.protocol import Hello

        channel, k = connect(*self.door, timeout=60.0), next(self.count)
        channel.send(Hello(f"worker-{k}", f"sim://{k}", 1_000_000 + k, "simulated"))
        self.selector.register(channel, selectors.EVENT_READ, pace * self.item_s)
        self.free_at[channel] = 0.0
        if until < float("inf"):
            self.later(until, self.go, channel)

    def go(self, channel: Any) -> None:
        """Lose a worker."""
        self.selector.unregister(channel)
        del self.free_at[channel]
        channel.close()

    def hear(self, channel: Any, item_s: float) -> None:
        """Read a message."""
        from espnet3.parallel.engine.loop import Block

        message = channel.recv()
        if message[0] == "run":
            channel.send(("ready", message[1], 0.0, 0.0))
        elif message[0] == "chunk":
            items, seconds = message[2], message[6]
            n = len(pickle.loads(items) if isinstance(items, bytes) else items)
            n = min(n, max(1, int(seconds / item_s) + 1))  # as the loop does: until the time is over
            took = n * item_s
            self.free_at[channel] = max(self.now(), self.free_at[channel]) + took
            answer = ("done", message[1], Block([None] * n, seconds=took))
            self.later(self.free_at[channel], self.answer, channel, answer)

    def answer(self, channel: Any, answer: Any) -> None:
        """Send the answer of a worker that is still there."""
        if channel in self.free_at:
            channel.send(answer)

    def serve(self) -> None:
        """Go on until the driver closes its door."""
        with suppress(OSError):  # a channel that is closed, too
            while True:
                for key, _ in self.selector.select(
                    max(0.0, self.due[0][0] - self.now()) if self.due else None
                ):
                    self.hear(key.fileobj, key.data)
                while self.due and self.due[0][0] <= self.now():
                    _, _, do, words = heapq.heappop(self.due)
                    do(*words)


def work(address: Any, key: str, workers: int) -> None:
    """Be real workers, threads of this process, whose items sleep."""
    from espnet3.parallel.pilots.protocol import Hello
    from espnet3.parallel.pilots.worker import Slots

    hello = Hello("worker", "here", os.getpid(), "another host", threads=workers)
    Slots(tuple(address), bytes.fromhex(key), hello).open()
    print("connecting", flush=True)
    time.sleep(3600)


def relay(address: Any, trip: float) -> None:
    """Pass on what comes, either way, after half a round trip; a round trip of 0: only name the address."""
    if not trip:
        print(json.dumps(address), flush=True)
        return
    door = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(json.dumps(door.getsockname()), flush=True)
    selector, ends = selectors.DefaultSelector(), dict[Any, socket.socket]()
    selector.register(door, selectors.EVENT_READ)
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        for key, _ in selector.select(max(0.0, under_way[0][0] - time.perf_counter()) if under_way else None):
            if key.fileobj is door:
                try:
                    pair = door.accept()[0], socket.create_connection(tuple(address))
                except ConnectionRefusedError:  # the driver has closed its door
                    return
                for one, two in (pair, pair[::-1]):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(one, selectors.EVENT_READ)
                    ends[one] = two
                continue
            data = key.fileobj.recv(1 << 16)
            under_way.append((time.perf_counter() + trip / 2, ends[key.fileobj], data))
            if not data:
                selector.unregister(key.fileobj)
        while under_way and under_way[0][0] <= time.perf_counter():
            _, end, data = under_way.popleft()
            if data:
                end.sendall(data)
            else:
                end.shutdown(socket.SHUT_WR)


def more_files(n: int) -> None:
    """Raise the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(n, hard), hard))


# --- the report ---


def _row(p: dict[str, Any]) -> dict[str, str]:
    case = Case(**p["case"])
    return {
        "workers": str(case.workers),
        "slow": str(case.slow or ""),
        "lost a minute": f"{case.lost:g}" if case.lost else "",
        "round trip, ms": f"{1000 * case.trip:g}" if case.trip else "",
        "item, s": f"{case.item_s:g}",
        "items": f"{case.items:,}",
        "s": number(p["wall_s"]),
        "of the best schedule": f"{p['efficiency']:.1%}",
        "driver, of a core": f"{p['cpu_s'] / p['wall_s']:.0%}",
        "µs per item": number(p["cpu_s"] / case.items * 1e6),
        "driver, MiB": f"{p['resident'] / 2**20:.0f}",
    }


ROLES: dict[str, Callable[..., object]] = {
    "drive": lambda case: print(json.dumps(measure(Case(**case)))),
    "simulate": lambda door, case: Workers(**door, case=Case(**case)).serve(),
    "work": lambda door, case: work(**door, workers=case["workers"]),
    "relay": lambda way: relay(**way),
}


def main() -> int:
    """Measure each pair in a process of its own, print the table, write figures and plot."""
    numbers = {"workers": WORKERS, "seconds": SECONDS, "trip": [0.0]}
    parser = report.arguments("simulated", __doc__, **numbers, length=5.0, slow=0, lost=0.0)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)  # another process of a case
    args = parser.parse_args()
    if args.role:
        name, *words = args.role
        ROLES[name](*map(json.loads, words))
        return 0
    found = itertools.product(args.seconds, args.trip, args.workers)
    cases = [Case(n, item_s, args.length, args.slow, args.lost, trip) for item_s, trip, n in found]
    points = [report.child("simulated", "--role", "drive", json.dumps(asdict(case))) for case in cases]
    rows = [_row(point) for point in points]
    print(grid(list(rows[0]), [list(row.values()) for row in rows]))
    report.write(args.out, ["numpy"], points=points)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for case, p in zip(cases, points, strict=True):
        figures = case.workers, 100 * p["cpu_s"] / p["wall_s"], 100 * p["efficiency"]
        lines.setdefault(f"items of {case.item_s:g} s", []).append(figures)
    titles = ("driver, % of one core", "of the best schedule, %")
    return report.plot(args.out.with_suffix(".svg"), "workers", titles, lines)


if __name__ == "__main__":
    raise SystemExit(main())
