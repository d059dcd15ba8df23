"""`python -m benchmarks.durable`: what `output_dir` costs, and what is done with a folder of millions of items."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report
from benchmarks.tables import grid, number

LINE_BYTES = 150  # of a record: about a sentence
BLOCK = 10_000


class Runner:
    """Stands for a user's."""


def cost(workers: int, items: int, rounds: int, where: Path | None) -> dict[str, list[float]]:
    """Run an empty function without a folder, with one, and in the finished one again; return µs an item."""
    from benchmarks.systems.ours_runners import Empty, Provider
    from espnet3.parallel import get_client

    def timed(folder: str | None) -> float:
        runner = Empty(Provider({}), progress=False, output_dir=folder)
        begin = time.perf_counter()
        results = runner(range(items))
        seconds = time.perf_counter() - begin
        if len(results) != items or results[items // 2] is not None:
            raise RuntimeError(f"{len(results)} results for {items} items")
        return seconds / items * 1e6

    found: dict[str, list[float]] = {"plain": [], "kept": [], "resumed": []}
    with get_client({"env": "local", "n_workers": workers}) if workers > 1 else nullcontext():
        timed(None)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="espnet3-bench-", dir=where) as folder:
                for name, place in (("plain", None), ("kept", folder), ("resumed", folder)):
                    found[name].append(timed(place))
    return found


def write(items: int, folder: Path) -> None:
    """Write a run of many done items and one that is left, every block far from the one before."""
    from espnet3.parallel.ledger.lines import encode_line

    filler, blocks = "x" * (LINE_BYTES - 60), -(-items // BLOCK)
    step = next(s for s in range(int(blocks * 0.618) + 1, 2 * blocks + 2) if math.gcd(s, blocks) == 1)
    with opened(folder, items + 1) as run:
        for k in range(blocks):
            begin = k * step % blocks * BLOCK
            block = range(begin, min(begin + BLOCK, items))
            run.append([encode_line(p, p, [p, filler]) for p in block], block)


def opened(folder: Path, items: int) -> Any:
    """Open a run of so many items."""
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import identify

    return open_run(folder, identify(Runner, Runner, {}, range(items)), range(items))


def resume(folder: Path, items: int) -> None:
    """Open the run as a resume does; its last item is left."""
    with opened(folder, items + 1) as run:
        if list(run.left()) != [items]:
            raise RuntimeError("not the last item alone is left")


def merge(folder: Path, items: int) -> None:
    """Compute what is left, and merge."""
    from espnet3.parallel.ledger.lines import encode_line

    with opened(folder, items + 1) as run:
        if list(run.left()):
            run.append([encode_line(items, items, None)], [items])
        run.merge()


def status(folder: Path, items: int) -> None:
    """Read what `watch` shows."""
    from espnet3.parallel.views.live import Watcher

    Watcher(folder).look()


def page(folder: Path, items: int) -> None:
    """Write what `report` writes."""
    from espnet3.parallel.views.facts import read_facts
    from espnet3.parallel.views.page import page_of

    page_of(read_facts(folder))


STEPS: dict[str, Callable[[Path, int], None]] = {
    step.__name__: step for step in (resume, status, merge, page)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = report.arguments("durable", __doc__, items=100_000, done=[1_000_000, 10_000_000], rounds=5)
    parser.add_argument(
        "--folder", type=Path, help="where run folders are made; default: the system's choice"
    )
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)  # one of a run in that folder
    args = parser.parse_args(argv)
    if args.step:
        (done,) = args.done
        print(json.dumps(report.watched(lambda: STEPS[args.step](args.folder, done))))
        return 0
    large, rows = dict[int, Any](), []
    for done in args.done:
        with tempfile.TemporaryDirectory(prefix="espnet3-bench-", dir=args.folder) as name:
            folder = Path(name, "run")
            write(done, folder)
            words = ("--done", done, "--folder", folder, "--step")
            large[done] = {step: report.child("durable", *words, step) for step in STEPS}
        for step, took in large[done].items():
            grown = (took["peak_bytes"] - took["before_bytes"]) / 2**20
            rows.append([f"{done:,}", step, number(took["seconds"]), f"{grown:.0f}"])
    print(grid(["done items", "", "s", "MiB more at most"], rows, (0, 1)), "\n")
    costs = {workers: cost(workers, args.items, args.rounds, args.folder) for workers in (1, 2)}
    rows = []
    for workers, found in costs.items():
        plain, kept, resumed = (median(found[name]) for name in ("plain", "kept", "resumed"))
        where = "this process" if workers == 1 else f"{workers} workers"
        rows.append([where, number(plain), number(kept), number(kept / plain), number(resumed)])
    print(f"an empty function over {args.items:,} items, medians of {args.rounds} rounds\n")
    print(grid(["", "µs/item", "with output_dir", "ratio", "finished, again"], rows))
    report.write(args.out, ["distributed"], costs=costs, large=large)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
