"""The benchmark command runs, says what is missing, and survives what hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks import ROOT, cases, rounds, simulated, summary
from benchmarks.launch import contained
from benchmarks.systems import SYSTEMS, load
from benchmarks.systems.base import System


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.matrix
def test_the_report_has_every_round_and_a_summary(tmp_path: Path) -> None:
    """Systems take turns; the summary has medians and ratios, names the poison item, and says what was left out."""
    out = tmp_path / "new" / "report.json"
    ended = _command(
        "--quick", "--workloads", "W2,W6-poison", "--systems", "loop,ours", "--rounds", "2", "--out", str(out)
    )
    assert ended.returncode == 0, ended.stderr
    assert "espnet3.parallel" in ended.stdout and "for-loop" in ended.stdout
    report = json.loads(out.read_text())
    assert report["complete"] and report["rounds"] == 2 and report["workers"] == 2 and report["quick"]
    ran = [(m["round"], m["system"]) for m in report["measurements"] if m["case"] == "W2"]
    assert ran == [(1, "loop"), (1, "ours"), (2, "ours"), (2, "loop")]
    rows = {(r["system"], r["case"], r["figure"]): r for r in report["summary"]}
    loop, ours = (rows[system, "W2", "efficiency"] for system in ("loop", "ours"))
    assert all(0 < row["low"] <= row["median"] <= row["high"] < 1.05 for row in (loop, ours))
    assert ours["ratio"] == 1 and loop["ratio"] == pytest.approx(ours["median"] / loop["median"])
    poison = rows["ours", "W6-poison", "results"]
    assert (poison["outcome"], poison["named"], poison["values"]) == ("complete", True, [199, 199])
    assert rows["loop", "W6-poison", "results"]["status"] == "left out"


def test_missing_peer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is not installed has a row that says so."""

    class Absent(System):
        title: ClassVar[str] = "absent"
        needs: ClassVar[tuple[str, ...]] = ("no_such_package_here",)

    monkeypatch.setattr(rounds, "load", lambda name: Absent)
    case = cases.select(["W2"], quick=True)[0]
    m = rounds.measure(case, "absent", 1, quick=True)
    (row,) = summary.summarise([case], ["absent"], [m])
    assert row.status == "not installed" and row.note == "not installed: no_such_package_here"
    assert row.median is None and row.ratio is None


def test_every_system_in_the_table_loads_without_its_peer() -> None:
    """An adapter's module imports nothing that may be missing."""
    lines = [f"from benchmarks.systems import load; load({name!r})" for name in SYSTEMS]
    check = f"import sys; bad = set(sys.modules); {'; '.join(lines)}; bad = set(sys.modules) - bad; "
    check += "sys.exit(bad & {'distributed', 'joblib', 'mpire', 'ray', 'espnet3'} or 0)"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True)
    assert all(load(name).title for name in SYSTEMS)


def test_unknown_names_are_refused_with_those_there_are() -> None:
    """A misspelt workload or system ends the command before anything runs."""
    for arguments in (("--workloads", "W9"), ("--systems", "oars")):
        ended = _command("--quick", *arguments)
        assert ended.returncode == 2
        assert arguments[1] in ended.stderr and "there are" in ended.stderr


@pytest.mark.parametrize("hangs", [True, False])
def test_what_a_process_starts_is_killed_with_it(hangs: bool, tmp_path: Path) -> None:
    """Neither at the limit nor after its end does a child that has left the session reach the next measurement."""
    child = "mkfifo no; setsid sh -c 'echo $$ > pid; read x < no' & until [ -s pid ]; do sleep 0.1; done; "
    script = child + ("sleep 600" if hangs else "true")
    limit = 5 if hangs else 600
    ended = contained(["sh", "-c", script], timeout=limit, cwd=tmp_path, log=tmp_path / "log")
    assert ended.timed_out is hangs and (ended.code < 0) is hangs
    assert hangs or ended.left_behind == 1
    assert not _runs(int((tmp_path / "pid").read_text()))


def test_simulated_workers_do_all_items(tmp_path):
    """Thirty workers, two of them slow and some lost: every item has its result, and the figures are in the file."""
    out = tmp_path / "simulated.json"
    command = [sys.executable, "-m", "benchmarks.simulated", "--workers", "30", "--seconds", "0.5"]
    command += ["--slow", "2", "--lost", "60"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert "driver, of a core" in done.stdout, done.stderr
    (point,) = json.loads(out.read_text())["points"]
    case = simulated.Case(**point["case"])
    assert case.workers == 30 and case.items == 300
    assert 0 < point["efficiency"] <= 1.1 and point["cpu_s"] > 0


def _runs(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has waited for."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
