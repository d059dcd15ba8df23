"""`python -m tests.clusters.chaos_slurm`: disturb detached runs on a real SLURM; `make chaos-slurm N=500`."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import grid
from tests.clusters.chaos_slurm.kinds import KINDS
from tests.clusters.chaos_slurm.rounds import Played, play, reference
from tests.clusters.labs import SLURM


def rounds(disturbances: int, each: int, first: int, base: Path) -> Iterator[Played]:
    """Play rounds until there were so many disturbances; yield each as it ends."""
    expected = reference(base / "reference")
    done, seed = 0, first
    while done < disturbances:
        played = play(seed, base / str(seed), min(each, disturbances - done), expected)
        if not played.wrong:
            shutil.rmtree(played.home)
        done += len(played.done)
        seed += 1
        yield played


def table(played: list[Played]) -> str:
    """Return how often each kind was done, and in how many rounds that went wrong."""
    times = Counter(kind for each in played for kind in each.done)
    wrong = Counter(kind for each in played if each.wrong for kind in set(each.done))
    rows = [[kind.name, str(times[kind.name]), str(wrong[kind.name])] for kind in KINDS]
    return grid(["disturbance", "times", "in rounds that went wrong"], rows)


def story(played: Played) -> str:
    """Return all there is to say about a round."""
    head = f"WRONG: seed {played.seed}, kept in {played.home}" if played.wrong else f"seed {played.seed}"
    return "\n".join([head, *played.story, played.wrong])


def main() -> int:
    """Play; 0 if every round came out right."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters.chaos_slurm", description=__doc__)
    parser.add_argument("--disturbances", type=int, default=500, help="over all rounds; default %(default)s")
    parser.add_argument("--each", type=int, default=10, help="in a round, at most; default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; default %(default)s")
    parser.add_argument("--stories", action="store_true", help="print what happened in every round")
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="chaos-"))
    begin, done = time.monotonic(), []
    os.environ.update(SLURM.start())
    try:
        for played in rounds(args.disturbances, args.each, args.seed, base):
            done.append(played)
            if played.wrong or args.stories:
                print(story(played), flush=True)
            print(f"{sum(len(p.done) for p in done)} of {args.disturbances}", file=sys.stderr, flush=True)
    finally:
        SLURM.stop()
    print(table(done))
    bad = sum(bool(p.wrong) for p in done)
    print(
        f"\n{len(done)} rounds, {sum(len(p.done) for p in done)} disturbances, {sum(p.again for p in done)} items "
        f"computed again, {sum(p.missed for p in done)} ended jobs that SLURM called running, "
        f"{bad} rounds wrong, {time.monotonic() - begin:.0f} s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
