"""`python -m tests.attack`: attack the package with small programs, and print those that find a fault."""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.attack.case import Case
from tests.attack.drawing import drawn
from tests.attack.judge import REPO, attack


def attacks(
    cases: Iterable[tuple[str, Case]], base: Path, code: Path = REPO, at_once: int = 2
) -> Iterator[tuple[str, Case, list[str]]]:
    """Carry out attacks, some at a time; yield each as it ends, with what was wrong."""
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(attack, case, base, code): (name, case) for name, case in cases}
        try:
            for future in as_completed(futures):
                yield (*futures[future], future.result())
        finally:
            for future in futures:
                future.cancel()


def story(name: str, case: Case, wrong: Sequence[str]) -> str:
    """Return all there is to say about an attack that found something: what, and how to see it again."""
    faults = "\n".join(f"  - {fault}" for fault in wrong)
    runs = " and ".join(f"python program.py {workers}" for workers in case.workers)
    return (
        f"FOUND by {name} ({case.name}):\n{faults}\n"
        f"again: python -m tests.attack --{name!s}\nor, by {runs}:\n\n{case.program()}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Attack; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--draws", type=int, default=20, help="programs to draw; default %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the first seed; default %(default)s")
    parser.add_argument(
        "--seed", type=int, action="append", help="this one alone; may be given several times"
    )
    parser.add_argument("--code", type=Path, default=REPO, help="the checkout to attack; default: this one")
    parser.add_argument("--at-once", type=int, default=2, help="programs at a time; default %(default)s")
    args = parser.parse_args(argv)
    seeds = args.seed or range(args.first, args.first + args.draws)
    cases = [(f"seed {seed}", drawn(seed)) for seed in seeds]
    base = Path(tempfile.mkdtemp(prefix="attack-"))
    begin, found = time.monotonic(), 0
    for name, case, wrong in attacks(cases, base, args.code.resolve(), args.at_once):
        if wrong:
            found += 1
            print(story(name, case, wrong), flush=True)
    shutil.rmtree(base, ignore_errors=True)
    print(f"{len(cases)} attacks, {found} found a fault, {time.monotonic() - begin:.0f} s")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
