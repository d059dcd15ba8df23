"""`python -m benchmarks.durable`: what `output_dir` costs, a resume of millions, a merge over time."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import OUT, machine, memory
from benchmarks.tables import grid, number

LINE_BYTES = 300  # of a record in the merge: about a sentence and its scores
BLOCK = 10_000
SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    """Items without and with a run folder, on one number of workers.

    Attributes:
        workers: Workers; one is this process.
        items: Items of each run.
        plain_us: Microseconds per item without a folder, a value for each round.
        kept_us: With one, the merge and its receipt included.
        resumed_us: Of opening a finished folder again and merging it: nothing is computed.
    """

    workers: int
    items: int
    plain_us: list[float]
    kept_us: list[float]
    resumed_us: list[float]


@dataclass(frozen=True, slots=True)
class Sample:
    """This process at one moment of a merge.

    Attributes:
        seconds: Since it began.
        resident: Bytes resident.
    """

    seconds: float
    resident: int


@contextmanager
def scratch(where: Path | None) -> Iterator[Path]:
    """Make a folder, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="espnet3-bench-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def cost(workers: int, items: int, rounds: int, where: Path | None) -> Cost:
    """Run an empty function over all items, without and with a folder in turn."""
    from benchmarks.systems.ours_runners import Empty, Provider
    from espnet3.parallel import get_client

    found = Cost(workers, items, [], [], [])

    def timed(folder: Path | None) -> float:
        runner = Empty(Provider({}), progress=False, output_dir=folder)
        begin = time.perf_counter()
        results = runner(range(items))
        seconds = time.perf_counter() - begin
        if len(results) != items or results[items // 2] is not None:
            raise RuntimeError(f"{len(results)} results for {items} items")
        return seconds / items * 1e6

    with get_client({"env": "local", "n_workers": workers}) if workers > 1 else nullcontext():
        timed(None)
        for _ in range(rounds):
            with scratch(where) as folder:
                found.plain_us.append(timed(None))
                found.kept_us.append(timed(folder))
                found.resumed_us.append(timed(folder))
    return found


def watched(job: Callable[[], Any]) -> list[Sample]:
    """Do something, and look at this process's memory meanwhile."""
    samples, over = list[Sample](), threading.Event()
    begin = time.perf_counter()

    def look() -> None:
        while True:
            samples.append(Sample(time.perf_counter() - begin, memory.resident()))
            if over.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        job()
    finally:
        over.set()
        thread.join()
    samples.append(Sample(time.perf_counter() - begin, memory.resident()))
    return samples


def merge(records: int, where: Path | None) -> dict[str, Any]:
    """Write a run of many records in a scattered order, merge it, and return what memory that took."""
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import identify
    from espnet3.parallel.ledger.lines import encode_line

    class Runner:
        """Stands for a user's."""

    items, filler = range(records), "x" * (LINE_BYTES - 60)
    identity = identify(Runner, Runner, {}, items)
    blocks = -(-records // BLOCK)
    step = next(s for s in range(int(blocks * 0.618) + 1, 2 * blocks + 2) if _coprime(s, blocks))
    with scratch(where) as folder:
        with open_run(folder, identity, items) as run:
            for k in range(blocks):  # every block once, each far from the one before
                begin = k * step % blocks * BLOCK
                block = range(begin, min(begin + BLOCK, records))
                run.append([encode_line(p, p, [p, filler]) for p in block], block)
        with open_run(folder, identity, items) as run:
            samples = watched(run.merge)
        size = (folder / "results.jsonl").stat().st_size
    peak = max(s.resident for s in samples)
    return {
        "records": records,
        "file_bytes": size,
        "seconds": samples[-1].seconds,
        "before_bytes": samples[0].resident,
        "peak_bytes": peak,
        "grown_bytes": peak - samples[0].resident,
        "series": [asdict(s) for s in samples],
    }


def opening(done: int, where: Path | None) -> dict[str, Any]:
    """Write a run of many done items as a driver does, open it again, and return what that took."""
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import identify
    from espnet3.parallel.ledger.lines import encode_line

    class Runner:
        """Stands for a user's."""

    items = range(done + 1)
    identity = identify(Runner, Runner, {}, items)
    with scratch(where) as folder:
        with open_run(folder, identity, items) as run:
            for begin in range(0, done, BLOCK):
                block = range(begin, min(begin + BLOCK, done))
                run.append([encode_line(p, p, None) for p in block], block)
        left = list[int]()

        def resume() -> None:
            with open_run(folder, identity, items) as run:
                left.extend(run.left())

        samples = watched(resume)
    if left != [done]:
        raise RuntimeError(f"{len(left)} left of {done + 1}, and not the last one alone")
    peak = max(s.resident for s in samples)
    return {"done": done, "seconds": samples[-1].seconds, "peak_bytes": peak}


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


def plot(merges: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw resident memory over the time of each merge."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for one in merges:
        seconds = [s["seconds"] for s in one["series"]]
        mebibytes = [s["resident"] / 2**20 for s in one["series"]]
        axes.plot(
            seconds, mebibytes, label=f"{one['records']:,} records, {one['file_bytes'] / 2**20:.0f} MiB"
        )
    axes.set(xlabel="seconds of the merge", ylabel="MiB resident", title="merge of a run folder")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durable", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000, help="default %(default)s")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the merge; default %(default)s")
    parser.add_argument("--done", type=int, default=10_000_000, help="of the resume; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument(
        "--folder", type=Path, help="where the run folders are made; default: the system's choice"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT / "durable.json", help="default %(default)s; the plot beside it"
    )
    args = parser.parse_args(argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)

    about = machine.describe(["distributed"])
    # the merges first: what the client leaves in this process would count as theirs
    merges = [merge(records, args.folder) for records in (args.records // 4, args.records)]
    opened = opening(args.done, args.folder)
    costs = [cost(workers, args.items, args.rounds, args.folder) for workers in (1, 2)]
    report = {
        "schema": 1,
        "machine": about,
        "costs": [asdict(c) for c in costs],
        "merges": merges,
        "opened": opened,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"an empty function over {args.items:,} items, medians of {args.rounds} rounds\n")
    print(grid(["", "µs/item", "with output_dir", "ratio", "finished, again"], [_row(c) for c in costs]))
    print()
    for one in merges:
        print(
            f"merge of {one['records']:,} records, {one['file_bytes'] / 2**20:.0f} MiB: {one['seconds']:.1f} s, "
            f"{one['before_bytes'] / 2**20:.0f} MiB before, {one['grown_bytes'] / 2**20:.0f} MiB more at most"
        )
    print(
        f"a folder of {opened['done']:,} done items is opened in {opened['seconds']:.2f} s, "
        f"{opened['peak_bytes'] / 2**20:.0f} MiB resident at most"
    )
    print(f"written: {args.out}")
    try:
        plot(merges, args.out.with_suffix(".png"))
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install -r benchmarks/requirements.txt", file=sys.stderr)
        return 1
    print(f"written: {args.out.with_suffix('.png')}")
    return 0


def _row(c: Cost) -> list[str]:
    plain, kept, resumed = (statistics.median(v) for v in (c.plain_us, c.kept_us, c.resumed_us))
    where = "this process" if c.workers == 1 else f"{c.workers} workers"
    return [where, number(plain), number(kept), number(kept / plain), number(resumed)]


if __name__ == "__main__":
    raise SystemExit(main())
