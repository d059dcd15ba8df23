"""`python -m benchmarks.rss`: what the driver holds while `parallel_for` goes through a long generator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from benchmarks import WORKERS, memory, report

LOOKS = 200


def double(x: int) -> int:
    """Return twice `x`: the item."""
    return 2 * x


class Source:
    """The generator, which counts what was taken from it; without `items` it has no end."""

    def __init__(self, items: int | None) -> None:
        self.items = items
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for x in count() if self.items is None else range(self.items):
            self.taken = x + 1
            yield x


def sample(items: int | None, seconds: float) -> list[tuple[float, int, int, int]]:
    """Go through the results; return seconds, results, items ahead and bytes resident, from time to time."""
    from espnet3.parallel import get_client, parallel_for

    source, samples, step = Source(items), list[tuple[float, int, int, int]](), (items or 10_000_000) // LOOKS
    with get_client({"env": "local", "n_workers": WORKERS}):
        begin = time.perf_counter()
        stream = parallel_for(double, source)
        for n, _ in enumerate(stream, 1):
            if n % step == 1 or n == items:
                samples.append((time.perf_counter() - begin, n, source.taken - n, memory.resident()))
                if items is None and samples[-1][0] > seconds:
                    break
        stream.close()
    return samples


def main() -> int:
    """Take the series, print what it says, write it."""
    parser = report.arguments("rss", __doc__, items=1_000_000, seconds=30.0)
    parser.add_argument(
        "--endless", action="store_true", help="a generator without end, left after --seconds"
    )
    args = parser.parse_args()
    samples = sample(None if args.endless else args.items, args.seconds)
    seconds, results, _, resident = samples[-1]
    tenth = next(s for s in samples if s[1] >= results / 10)
    growth = (resident - tenth[3]) / max(1, results - tenth[1])
    ahead, peak = max(s[2] for s in samples), max(s[3] for s in samples)
    print(
        f"parallel_for over {results:,} items{' of an endless generator' * args.endless}: {seconds:.1f} s, driver "
        f"{samples[0][3] / 2**20:.1f} MiB at the first result, {peak / 2**20:.1f} MiB at most, {growth:.2f} bytes an "
        f"item after the first tenth, at most {ahead:,} items ahead"
    )
    report.write(
        args.out, ["distributed"], endless=args.endless, growth_bytes_per_item=growth, series=samples
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
