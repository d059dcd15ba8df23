"""`python -m benchmarks.durable`: what `output_dir` costs, the memory of a merge, a resume of millions."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report
from benchmarks.tables import grid, number

LINE_BYTES = 300  # of a record in the merge: about a sentence and its scores
BLOCK = 10_000


class Runner:
    """Stands for a user's."""


def scratch(where: Path | None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder, which is removed."""
    return tempfile.TemporaryDirectory(prefix="espnet3-bench-", dir=where)


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
            with scratch(where) as folder:
                for name, place in (("plain", None), ("kept", folder), ("resumed", folder)):
                    found[name].append(timed(place))
    return found


def merge(records: int, where: Path | None) -> dict[str, Any]:
    """Write a run of many records in a scattered order, merge it, and return what that took."""
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import identify
    from espnet3.parallel.ledger.lines import encode_line

    items, filler = range(records), "x" * (LINE_BYTES - 60)
    identity = identify(Runner, Runner, {}, items)
    blocks = -(-records // BLOCK)
    step = next(s for s in range(int(blocks * 0.618) + 1, 2 * blocks + 2) if math.gcd(s, blocks) == 1)
    with scratch(where) as name:
        folder = Path(name, "run")
        with open_run(folder, identity, items) as run:
            for k in range(blocks):  # every block once, each far from the one before
                begin = k * step % blocks * BLOCK
                block = range(begin, min(begin + BLOCK, records))
                run.append([encode_line(p, p, [p, filler]) for p in block], block)
        with open_run(folder, identity, items) as run:
            took = report.watched(run.merge)
        size = (folder / "results.jsonl").stat().st_size
    return {"records": records, "file_bytes": size, **took}


def opening(done: int, where: Path | None) -> dict[str, Any]:
    """Write a run of many done items as a driver does, open it again, and return what that took."""
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import identify
    from espnet3.parallel.ledger.lines import encode_line

    items, left = range(done + 1), list[int]()
    identity = identify(Runner, Runner, {}, items)
    with scratch(where) as name:
        folder = Path(name, "run")
        with open_run(folder, identity, items) as run:
            for begin in range(0, done, BLOCK):
                block = range(begin, min(begin + BLOCK, done))
                run.append([encode_line(p, p, None) for p in block], block)

        def resume() -> None:
            with open_run(folder, identity, items) as run:
                left.extend(run.left())

        took = report.watched(resume)
    if left != [done]:
        raise RuntimeError(f"{len(left)} left of {done + 1}, and not the last one alone")
    return {"done": done, **took}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    numbers = {"items": 100_000, "records": 1_000_000, "done": 10_000_000, "rounds": 5}
    parser = report.arguments("durable", __doc__, **numbers)
    parser.add_argument(
        "--folder", type=Path, help="where run folders are made; default: the system's choice"
    )
    args = parser.parse_args(argv)
    # the merges first: what the client leaves in this process would count as theirs
    merges = [merge(records, args.folder) for records in (args.records // 4, args.records)]
    opened = opening(args.done, args.folder)
    costs = {workers: cost(workers, args.items, args.rounds, args.folder) for workers in (1, 2)}
    rows = []
    for workers, found in costs.items():
        plain, kept, resumed = (median(found[name]) for name in ("plain", "kept", "resumed"))
        where = "this process" if workers == 1 else f"{workers} workers"
        rows.append([where, number(plain), number(kept), number(kept / plain), number(resumed)])
    print(f"an empty function over {args.items:,} items, medians of {args.rounds} rounds\n")
    print(grid(["", "µs/item", "with output_dir", "ratio", "finished, again"], rows), "\n")
    for one in merges:
        print(
            f"merge of {one['records']:,} records, {one['file_bytes'] / 2**20:.0f} MiB: {one['seconds']:.1f} s, "
            f"{(one['peak_bytes'] - one['before_bytes']) / 2**20:.0f} MiB at most beyond what was there before"
        )
    print(
        f"a folder of {opened['done']:,} done items is opened in {opened['seconds']:.2f} s, "
        f"{opened['peak_bytes'] / 2**20:.0f} MiB resident at most"
    )
    report.write(args.out, ["distributed"], costs=costs, merges=merges, opened=opened)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
