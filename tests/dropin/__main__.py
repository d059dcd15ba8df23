"""`make test-espnet3`: ESPnet's recipe and tests with its own parallel layer and with ours over it."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.dropin import promises, suites, times
from tests.dropin.deliberate import REASONS
from tests.dropin.environment import ROOT, Scratch, prepare
from tests.dropin.recipe import Check
from tests.dropin.report import page
from tests.dropin.suites import Suite

PAGE = ROOT / "docs/generated/espnet3-results.md"


def main() -> int:
    """Run what was asked for; return 1 if something is wrong that has no stated reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.dropin", description=__doc__)
    parser.add_argument("--scratch", type=Path, default=ROOT / ".espnet3", help="where everything is kept")
    parser.add_argument("--only", choices=["recipe", "suites", "times"], help="a part of it")
    parser.add_argument("--rounds", type=int, default=3, help="how often each command is timed")
    parser.add_argument(
        "--folder", choices=suites.FOLDERS, action="append", help="of the tests, this one alone"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}, of the parts that are run"
    )
    arguments = parser.parse_args()
    parts = {arguments.only} if arguments.only else {"recipe", "suites", "times"}
    scratch = prepare(arguments.scratch.resolve())
    checks: list[Check] = []
    timed: list[times.Times] = []
    compared: list[Suite] = []
    bad = 0
    if parts & {"recipe", "times"} and _shown([promises.prepare(scratch)])[0].wrong:
        return 1
    if "times" in parts:
        timed = times.measure(scratch, arguments.rounds)
        print(*times.table(timed), sep="\n", flush=True)
    if "recipe" in parts:
        checks = _shown(promises.all_of(scratch))
        bad += sum(bool(check.wrong) for check in checks)
    if "suites" in parts:
        folders = arguments.folder or suites.FOLDERS
        compared = [_compared(scratch, folder) for folder in folders]
        lost = {name for suite in compared for name in suite.lost}
        bad += len(lost - REASONS.keys())
        for name in sorted(REASONS.keys() - lost if folders == suites.FOLDERS else ()):
            bad += 1
            print(f" WRONG  {name} passes, and deliberate.py has a reason why it would not")
    if arguments.write:
        PAGE.write_text(page(checks, timed, compared), encoding="utf-8")
    return 1 if bad else 0


def _shown(checks: Iterable[Check]) -> list[Check]:
    """Print each check as soon as it is done, and return them."""
    done = []
    for check in checks:
        done.append(check)
        _print(bool(check.wrong), check.name, check.wrong)
    return done


def _compared(scratch: Scratch, folder: str) -> Suite:
    suite = suites.compare(scratch, folder)
    unexplained = [f"{name}: {why}" for name, why in suite.lost.items() if name not in REASONS]
    said = f"{suite.where}: {suite.theirs} of {suite.total} pass with its own layer, {suite.ours} with ours"
    _print(bool(unexplained), said, unexplained)
    return suite


def _print(wrong: bool, said: str, more: list[str]) -> None:
    print(f"{'WRONG' if wrong else 'ok':>6}  {said}", *more, sep="\n        ", flush=True)


if __name__ == "__main__":
    sys.exit(main())
