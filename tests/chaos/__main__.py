"""`python -m tests.chaos`: disturb runs in many ways, and print what it cost; `make chaos N=200`."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median

from benchmarks.tables import grid
from tests.chaos.kinds import KINDS
from tests.chaos.outcome import Outcome
from tests.chaos.rounds import VARIANTS, Played, play, reference


def rounds(seeds: Sequence[int], at_once: int, base: Path) -> Iterator[Played]:
    """Play rounds, some at a time, in folders under `base`; yield each as it ends."""
    undisturbed: dict[str, Outcome] = {v: reference(v, base) for v in VARIANTS}
    with ThreadPoolExecutor(at_once) as pool:
        futures = []
        for seed in seeds:
            home = base / str(seed)
            home.mkdir()
            futures.append(pool.submit(play, seed, home, undisturbed))
        try:
            for future in as_completed(futures):
                played = future.result()
                if not played.wrong:
                    shutil.rmtree(played.home)
                yield played
        finally:
            for future in futures:
                future.cancel()


def table(played: Iterable[Played]) -> str:
    played = list(played)
    body = []
    for kind in KINDS:
        found = [d for p in played for d in p.disturbances if d.kind == kind.name]
        if not found:
            continue
        again = [d.again for d in found]
        bound = median(d.bound for d in found)
        body.append([kind.name, str(len(found)), f"{median(again):g}", str(max(again)), f"{bound:g}"])
    return grid(["disturbance", "times", "again, median", "most", "bound, median"], body)


def main(argv: Sequence[str] | None = None) -> int:
    """Play; 0 if every round came out right."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="seeds 0, 1, 2, ...; default %(default)s")
    parser.add_argument("--seed", type=int, action="append", help="play this one; may be given several times")
    parser.add_argument("--at-once", type=int, default=2, help="rounds at a time; default %(default)s")
    args = parser.parse_args(argv)
    seeds = args.seed or list(range(args.rounds))
    base = Path(tempfile.mkdtemp(prefix="chaos-"))
    begin, done = time.monotonic(), []
    for played in rounds(seeds, args.at_once, base):
        done.append(played)
        if played.wrong:
            print(story(played), flush=True)
        elif sys.stderr.isatty():
            print(f"\r{len(done)} of {len(seeds)} rounds", end="", file=sys.stderr, flush=True)
    bad = [p for p in done if p.wrong]
    again = sum(d.again for p in done for d in p.disturbances)
    times = sum(len(p.disturbances) for p in done)
    print(table(done))
    print(
        f"\n{len(done)} rounds, {times} disturbances, {again} items computed again, {len(bad)} rounds wrong, "
        f"{time.monotonic() - begin:.0f} s"
    )
    if not bad:
        shutil.rmtree(base)
    return int(bool(bad))


def story(played: Played) -> str:
    """Return all there is to say about a round that went wrong."""
    lines = [f"WRONG: seed {played.seed}, variant {played.variant}, kept in {played.home}", *played.story]
    return "\n".join([*lines, played.wrong, ""])


if __name__ == "__main__":
    raise SystemExit(main())
