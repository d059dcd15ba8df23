"""`python -m benchmarks.rss`: what the driver holds while `parallel_for` goes through a long generator."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from benchmarks import OUT, WORKERS, machine, memory

SAMPLES = 200
SAMPLES_PER_SECOND = 20  # where there is no end to divide


@dataclass(frozen=True, slots=True)
class Sample:
    """The driver at one moment.

    Attributes:
        seconds: Since the loop began.
        taken: Items the generator had given.
        results: Results the loop had received.
        resident: Bytes resident.
    """

    seconds: float
    taken: int
    results: int
    resident: int


def double(x: int) -> int:
    """Return twice `x`: the item."""
    return 2 * x


class Source:
    """The generator: counts what was taken from it.

    Args:
        items: How many there are; None for no end.
    """

    def __init__(self, items: int | None) -> None:
        """Start at the first."""
        self.items = items
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers from 0."""
        for x in count() if self.items is None else range(self.items):
            self.taken = x + 1
            yield x


def sample(items: int | None, seconds: float) -> tuple[list[Sample], float]:
    """Go through the results, looking at the driver as we go; return that and the seconds closing took."""
    from espnet3.parallel import get_client, parallel_for

    source, samples, results = Source(items), list[Sample](), 0
    step = max(2, (items or 0) // SAMPLES)
    with get_client({"env": "local", "n_workers": WORKERS}):
        begin = due = time.perf_counter()
        stream = parallel_for(double, source)
        for _ in stream:
            results += 1
            now = time.perf_counter()
            if now >= due if items is None else results % step == 1:
                samples.append(Sample(now - begin, source.taken, results, memory.resident()))
                due = now + 1 / SAMPLES_PER_SECOND
                if items is None and now - begin > seconds:
                    break
        samples.append(Sample(time.perf_counter() - begin, source.taken, results, memory.resident()))
        closing = time.perf_counter()
        stream.close()
        closed = time.perf_counter() - closing
    return samples, closed


def growth(samples: list[Sample]) -> float:
    """Return the bytes per item the driver grew by after the first tenth of the results."""
    tenth = next(s for s in samples if s.results >= samples[-1].results / 10)
    items = samples[-1].results - tenth.results
    return (samples[-1].resident - tenth.resident) / items if items else 0.0


def plot(samples: list[Sample], title: str, path: Path) -> None:
    """Draw resident memory over items."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.plot([s.results / 1e6 for s in samples], [s.resident / 2**20 for s in samples])
    axes.set(xlabel="results (millions)", ylabel="driver, MiB resident", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Take the series, write it, draw it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rss", description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000, help="default %(default)s")
    parser.add_argument(
        "--endless", action="store_true", help="a generator without end, left after --seconds"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="with --endless; default %(default)s")
    parser.add_argument(
        "--out", type=Path, default=OUT / "rss.json", help="default %(default)s; the plot beside it"
    )
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)

    samples, closed = sample(None if args.endless else args.items, args.seconds)
    last, ahead = samples[-1], max(s.taken - s.results for s in samples)
    report = {
        "schema": 1,
        "endless": args.endless,
        "workers": WORKERS,
        "machine": machine.describe(["distributed"]),
        "results": last.results,
        "seconds": last.seconds,
        "most_items_ahead": ahead,
        "growth_bytes_per_item": growth(samples),
        "peak_bytes": max(s.resident for s in samples),
        "close_s": closed,
        "series": [asdict(s) for s in samples],
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    title = f"parallel_for over {last.results:,} items" + (" of an endless generator" if args.endless else "")
    print(
        f"{title}: {last.seconds:.1f} s, driver {samples[0].resident / 2**20:.1f} MiB at the first result,"
        f" {report['peak_bytes'] / 2**20:.1f} MiB at most, {report['growth_bytes_per_item']:.2f} bytes/item,"
        f" at most {ahead:,} items ahead, closed in {closed:.2f} s"
    )
    print(f"written: {args.out}")
    try:
        plot(samples, title, args.out.with_suffix(".png"))
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install -r benchmarks/requirements.txt", file=sys.stderr)
        return 1
    print(f"written: {args.out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
