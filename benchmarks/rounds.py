"""The plan of a benchmark and its execution: rounds of cases, and in each case every system in turn."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.cases import CLOSE, EXIT, Case
from benchmarks.launch import Ended, contained
from benchmarks.systems import load


@dataclass(slots=True)
class Measurement:
    """One cell of one round."""

    round: int  # from 1
    case: str  # name of the case
    system: str  # name of the system
    status: str  # "ok", "hangs", "failed", "left out" or "not installed"
    n: int = 0  # items run; 0 where nothing ran
    figures: dict[str, float] = field(default_factory=dict)  # the numbers, by key
    outcome: str = ""  # in words: what became of a W6 run, where a W5 item ran
    named: bool | None = None  # W6: whether the error names the poison item
    lost: list[str] = field(default_factory=list)  # W6: what the system said of items without a result
    detail: str = ""  # why there is no figure, or the error a W6 run ended with
    left_behind: int = 0  # processes that outlived the measurement and were killed
    load_average: float = 0.0  # of the machine, just before


def run(
    cases: Sequence[Case],
    systems: Sequence[str],
    rounds: int,
    quick: bool,
) -> Iterator[Measurement]:
    """Yield every measurement of every round.

    Within a round all systems take a case one after another, so that a machine that changes its pace
    changes it for all; which of them is first moves on with each round. What hung is not tried again.
    """
    hung: set[tuple[str, str]] = set()
    for number in range(1, rounds + 1):
        for case in cases:
            shift = (number - 1) % len(systems)
            for name in [*systems[shift:], *systems[:shift]]:
                if (case.name, name) in hung or not load(name).takes_part(case):
                    continue
                m = measure(case, name, number, quick)
                if m.status == "hangs":
                    hung.add((case.name, name))
                yield m


def measure(case: Case, name: str, number: int, quick: bool) -> Measurement:
    """Take one measurement in a fresh process, or say why there is none."""
    system = load(name)
    if missing := system.missing():
        return Measurement(number, case.name, name, "not installed", detail=", ".join(missing))
    if reason := system.left_out(case):
        return Measurement(number, case.name, name, "left out", detail=reason)
    pace = os.getloadavg()[0]
    with TemporaryDirectory(prefix="espnet3-bench-") as folder:
        scratch = Path(folder)
        argv = [sys.executable, "-m", "benchmarks.child", "--case", case.name, "--system", name]
        argv += ["--quick"] * quick + ["--scratch", folder, "--started", repr(time.monotonic())]
        log = scratch / "log"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ended = contained(argv, timeout=case.timeout, cwd=ROOT, log=log, env={"PYTHONPATH": path})
        m = _read(scratch, ended, Measurement(number, case.name, name, "ok", load_average=pace))
        wanted = {figure.key for figure in case.figures}
        m.figures = {key: value for key, value in m.figures.items() if key in wanted}
        if m.status in ("hangs", "failed") and (tail := log.read_text(errors="replace").strip()[-1500:]):
            m.detail += f"\n{tail}"
    return m


def _read(scratch: Path, ended: Ended, m: Measurement) -> Measurement:
    """Fill in a measurement from the report its process wrote and from the way the process ended."""
    path = scratch / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    m.n, m.left_behind = report.get("n", 0), ended.left_behind
    taken, phase = report.get("taken"), report.get("phase", "import")
    if taken:
        m.figures, m.outcome, m.detail = taken["figures"], taken["outcome"], taken["error"]
        m.named, m.lost = taken["named"], taken["lost"]
        m.figures[EXIT.key] = ended.exited - taken["last"]
        m.figures[CLOSE.key] = report.get("close_s", m.figures[EXIT.key])
    if ended.timed_out:
        m.status, m.outcome = "hangs", f"hangs in {phase}"
        m.detail = f"killed in phase {phase!r}"
        if (count := scratch / "results").exists():
            m.outcome += f" after {int(count.read_text() or 0)} results"
    elif "stop_error" in report:
        m.detail = "\n".join(
            filter(None, [m.detail, f"while closing: {report['stop_error'].splitlines()[-1]}"])
        )
    if not ended.timed_out and (taken is None or ended.code != 0):
        m.status = "failed"
        m.detail = report.get("error", f"ended with status {ended.code} in phase {phase!r}\n{m.detail}")
    return m
