"""`make test-espnet3`: ESPnet's recipe and tests with its own parallel layer and with ours over it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.dropin import recipe, suites
from tests.dropin.deliberate import REASONS
from tests.dropin.environment import ROOT, prepare
from tests.dropin.report import page

PAGE = ROOT / "docs" / "espnet3-results.md"


def main() -> int:
    """Run what was asked for; return 1 if something is wrong that has no stated reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.dropin", description=__doc__)
    parser.add_argument("--scratch", type=Path, default=ROOT / ".espnet3", help="where everything is kept")
    parser.add_argument("--only", choices=["recipe", "suites"], help="half of it")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    scratch = prepare(arguments.scratch.resolve())
    checks, compared, bad = [], [], 0
    if arguments.only != "suites":
        for check in recipe.run_all(scratch):
            checks.append(check)
            bad += bool(check.wrong)
            print(
                f"{'WRONG' if check.wrong else 'ok':>6}  {check.name}",
                *check.wrong,
                sep="\n        ",
                flush=True,
            )
    if arguments.only != "recipe":
        for folder in (*suites.FOLDERS, "ci"):
            suite = suites.compare(scratch, folder)
            compared.append(suite)
            unexplained = [name for name in suite.lost if name not in REASONS]
            bad += len(unexplained)
            print(
                f"{'WRONG' if unexplained else 'ok':>6}  test/{folder}: {suite.theirs} of {suite.total} pass with its "
                f"own layer, {suite.ours} with ours",
                *(f"{name}: {suite.lost[name]}" for name in unexplained),
                sep="\n        ",
                flush=True,
            )
        lost = {name for suite in compared for name in suite.lost}
        for name in sorted(REASONS.keys() - lost):
            bad += 1
            print(f" WRONG  {name} passes, and deliberate.py has a reason why it would not")
    if arguments.write:
        PAGE.write_text(page(checks, compared), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
