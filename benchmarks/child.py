"""One measurement in a process of its own, as `python -m benchmarks` starts it."""

from __future__ import annotations

import argparse
import json
import resource
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import cases
from benchmarks.measures import MEASURES, Setting
from benchmarks.systems import load


class Report:
    """The file the parent reads; written at each step, so that a process that hangs has said where."""

    def __init__(self, path: Path) -> None:
        """Start with nothing in it."""
        self.path = path
        self.content: dict[str, Any] = {}

    def add(self, **content: Any) -> None:
        """Add to the content and write it."""
        self.content.update(content)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content))
        part.replace(self.path)

    def phase(self, name: str) -> None:
        """Say how far the measurement came."""
        self.add(phase=name)


def main() -> int:
    """Measure one case on one system; 0 if there are figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--started", type=float, default=0.0, help="time.monotonic() of the parent")
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for the report")
    args = parser.parse_args()

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # W6 segfaults on purpose
    (case,) = (c for c in cases.table(args.quick) if c.name == args.case)
    cls = load(args.system)
    work = case.work.at_most(cls.cap(case, args.quick))
    report = Report(args.scratch / "report.json")
    report.add(phase="import", n=work.n)
    system = cls()
    setting = Setting(case, work, args.started, args.scratch, report.phase)
    try:
        taken = MEASURES[case.measure](system, setting)
        report.add(phase="stop", taken=asdict(taken))
    except Exception:
        report.add(error=traceback.format_exc())
        return 1
    begin = time.perf_counter()
    try:
        system.stop()
    except Exception:
        report.add(stop_error=traceback.format_exc())
        if case.measure != "faults":
            return 1
    report.add(phase="exit", close_s=time.perf_counter() - begin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
