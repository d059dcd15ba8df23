"""`python -m benchmarks`: run the workloads on this project and on its peers, and print who needs what."""

from __future__ import annotations

import argparse
import compileall
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import OUT, ROOT, WORKERS, cases, machine, report, rounds, summary, tables
from benchmarks.rounds import Measurement
from benchmarks.systems import SYSTEMS, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0 unless a measurement of ours failed or hung, or the run was interrupted."""
    args = _parse(argv)
    systems: list[str] = args.systems or [s for s in SYSTEMS if load(s).in_quick or not args.quick]
    picked: list[cases.Case] = [c for c in args.workloads if any(load(s).takes_part(c) for s in systems)]
    for name in SYSTEMS:
        if name not in systems and not args.systems:
            _say(f"{name} is not in --quick (it starts in seconds); name it with --systems")
    packages = [package for name in systems for package in load(name).needs]
    about = machine.describe(packages)
    if about["load_average"] > 0.25 * about["cpus"]:
        _say(f"the machine is not quiet (load {about['load_average']:.1f}): take no figure from this run")
    # pip has compiled the peers; where Python writes no byte code, a checkout is compiled in each process
    compileall.compile_dir(ROOT / "espnet3", quiet=1)
    started, begin = datetime.now(timezone.utc), time.monotonic()

    taken: list[Measurement] = []
    complete = False
    try:
        for m in rounds.run(picked, systems, args.rounds, args.quick):
            taken.append(m)
            _progress(m, args.rounds)
        complete = True
    except KeyboardInterrupt:
        _say("interrupted: what was taken until now is reported")

    rows = summary.summarise(picked, systems, taken)
    seconds = round(time.monotonic() - begin, 1)
    result = {
        "command": shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if argv is None else argv)]),
        "started": started.isoformat(timespec="seconds"),
        "seconds": seconds,
        "complete": complete,
        "quick": args.quick,
        "rounds": args.rounds,
        "workers": WORKERS,
        "load_average_before": about["load_average"],
        "systems": {name: {"title": load(name).title, "missing": load(name).missing()} for name in systems},
        "cases": {case.name: case.title for case in picked},
        "measurements": [asdict(m) for m in taken],
        "summary": [asdict(row) for row in rows],
    }
    print(tables.details(picked, rows))
    print(
        f"\n{args.rounds} round{'s' * (args.rounds != 1)}, {seconds} s, Python {about['python']},"
        f" {about['cpus']} CPUs, load {about['load_average']:.2f} before."
        + (" Sizes of --quick: the shape, not the figures." if args.quick else "")
    )
    report.write(args.out, packages, **result)
    bad = any(m.system == summary.OURS and m.status in ("failed", "hangs") for m in taken)
    return int(bad or not complete)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, under two minutes")
    parser.add_argument(
        "--workloads", metavar="W1,W3-first", help=f"of {', '.join(c.name for c in cases.table())}"
    )
    parser.add_argument("--systems", metavar="ours,pool", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, help="default 3, with --quick 1")
    parser.add_argument("--out", type=Path, default=OUT / "benchmarks.json", help="default %(default)s")
    args = parser.parse_args(argv)
    args.rounds = args.rounds if args.rounds is not None else 1 if args.quick else 3
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; it must be at least 1")
    try:
        args.workloads = cases.select(_names(args.workloads), args.quick)
        args.systems = _names(args.systems)
        for name in args.systems or ():
            load(name)
    except ValueError as error:
        parser.error(str(error))
    return args


def _names(text: str | None) -> list[str] | None:
    return None if text is None else list(dict.fromkeys(x.strip() for x in text.split(",") if x.strip()))


def _progress(m: Measurement, of: int) -> None:
    if m.status == "left out":
        return
    figures = ", ".join(f"{key} {tables.number(value)}" for key, value in m.figures.items())
    said = f"{m.status}: {(m.detail.strip().splitlines() or [''])[-1][:120]}" if m.status != "ok" else ""
    _say(f"[{m.round}/{of}] {m.case:14} {m.system:11} {' '.join(filter(None, [figures, m.outcome, said]))}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
