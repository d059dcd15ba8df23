"""`python -m benchmarks.scale`: what hundreds of workers cost the driver: time per item, and memory.

The workers are jobs of a scheduler of our own (`light_jobs`), which come, connect over TCP and are replaced
like any cluster's. Their items sleep: two cores have nothing for 200 workers to compute with.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks import light_jobs, memory, report, tables

WORKERS = [10, 50, 100, 200]
ITEMS = 100_000
SECONDS = 0.005  # of an item that sleeps


def double(x: int) -> int:
    """Return twice `x`: the empty item."""
    return 2 * x


def nap(x: int) -> int:
    """Sleep, and return the process: the item that takes time."""
    time.sleep(SECONDS)
    return os.getpid()


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what a call returns, its wall time, and the processor time this process took."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = call()
    return value, time.perf_counter() - wall, time.process_time() - cpu


def measure(workers: int, items: int) -> dict[str, float]:
    """Start the workers, run the items, end; return the driver's figures."""
    import psutil

    from espnet3.parallel import get_client, parallel_map

    options = {
        "cores": 1,
        "memory": "200MB",
        "nanny": False,  # a second process for each job
        "interface": "lo",
        # not the address that means "this machine": pilots connect over TCP, as they do on a cluster
        "scheduler_options": {"host": "127.0.0.2"},
        "worker_extra_args": ["--no-dashboard"],
    }
    with light_jobs.scheduler():
        begin, cpu = time.perf_counter(), time.process_time()
        block = {"env": "slurm", "n_workers": workers, "start_timeout": 300, "options": options}
        with get_client(block):
            parallel_map(double, [0])
            first = time.perf_counter() - begin
            while len(set(parallel_map(nap, range(20 * workers)))) < workers:
                pass
            start, start_cpu = time.perf_counter() - begin, time.process_time() - cpu
            right, _, empty_cpu = timed(lambda: parallel_map(double, range(items)))
            assert right == [2 * x for x in range(items)]
            pids, sleep, sleep_cpu = timed(lambda: parallel_map(nap, range(items)))
            assert len(set(pids)) == workers
            resident, files = memory.resident(), psutil.Process().num_fds()
            _, second, idle = timed(lambda: time.sleep(2))
            closing = time.perf_counter()
        end = time.perf_counter() - closing
    per_item = 1e6 / items
    return {
        "workers": workers,
        "first result, s": first,
        "all at work, s": start,
        "driver CPU, s": start_cpu,
        "µs per empty item": empty_cpu * per_item,
        "µs per item of 5 ms": sleep_cpu * per_item,
        "its wall, s": sleep,
        "driver, MiB": resident / 2**20,
        "files": files,
        "idle, % of a core": 100 * idle / second,
        "end, s": end,
    }


def main() -> int:
    """Measure each number of workers in a process of its own, print the table, write the figures."""
    parser = report.arguments("scale", __doc__, workers=WORKERS, items=ITEMS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # the child: prints its figures
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.workers[0], args.items)))
        return 0
    words = ("--items", args.items, "--one", "--workers")
    points = [report.child("scale", *words, n) for n in args.workers]
    print(tables.grid(list(points[0]), [list(map(tables.number, point.values())) for point in points]))
    report.write(args.out, ["dask-jobqueue", "distributed"], items=args.items, points=points)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
