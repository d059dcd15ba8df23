"""The benchmark command runs, says what is missing, and survives what hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import ROOT, cases, rounds, summary
from benchmarks.launch import contained
from benchmarks.systems import SYSTEMS, load
from benchmarks.systems.base import System

_SLEEPER = "import time; time.sleep(600)"


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command writes for two systems and two workloads."""
    out = tmp_path_factory.mktemp("out") / "new" / "report.json"
    ended = _command(
        "--quick", "--workloads", "W2,W6-poison", "--systems", "loop,ours", "--rounds", "2", "--out", str(out)
    )
    assert ended.returncode == 0, ended.stderr
    assert "espnet3.parallel" in ended.stdout and "for-loop" in ended.stdout
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.mark.matrix
def test_report_holds_every_round_of_every_system_in_turn(report: dict[str, Any]) -> None:
    """Systems take turns within a round, and each round starts with another one."""
    ran = [(m["round"], m["system"]) for m in report["measurements"] if m["case"] == "W2"]
    assert ran == [(1, "loop"), (1, "ours"), (2, "ours"), (2, "loop")]
    assert report["complete"] and report["rounds"] == 2 and report["workers"] == 2 and report["quick"]


@pytest.mark.matrix
def test_summary_has_median_range_and_ratio(report: dict[str, Any]) -> None:
    """The ratio is that of the medians, above 1 where ours is better."""
    rows = {r["system"]: r for r in report["summary"] if r["case"] == "W2"}
    for row in rows.values():
        assert row["figure"] == "efficiency" and len(row["values"]) == 2
        assert 0 < row["low"] <= row["median"] <= row["high"] < 1.05
    assert rows["ours"]["ratio"] == 1
    assert rows["loop"]["ratio"] == pytest.approx(rows["ours"]["median"] / rows["loop"]["median"])


@pytest.mark.matrix
def test_poison_item_is_named_and_what_is_left_out_says_why(report: dict[str, Any]) -> None:
    """Ours loses the poison item alone and names it; the loop cannot run it and has a reason."""
    rows = {
        r["system"]: r for r in report["summary"] if r["case"] == "W6-poison" and r["figure"] == "results"
    }
    assert rows["ours"]["outcome"] == "complete" and rows["ours"]["named"] is True
    assert rows["ours"]["values"] == [199, 199]
    assert rows["loop"]["status"] == "left out" and rows["loop"]["note"]


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


def test_process_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """The limit ends the process, and also a child of it that has left the session."""
    pids = tmp_path / "pids"
    parent = (
        "import os, subprocess, sys, time;"
        f"p = subprocess.Popen([sys.executable, '-c', {_SLEEPER!r}], start_new_session=True);"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{p.pid}}'); time.sleep(600)"
    )
    ended = contained([sys.executable, "-c", parent], timeout=15, cwd=tmp_path, log=tmp_path / "log")
    assert ended.timed_out and ended.code < 0
    for pid in map(int, pids.read_text().split()):
        assert not _runs(pid)


def test_process_left_behind_is_counted_and_killed(tmp_path: Path) -> None:
    """What outlives its parent does not reach the next measurement."""
    pids = tmp_path / "pids"
    parent = (
        "import subprocess, sys;"
        f"p = subprocess.Popen([sys.executable, '-c', {_SLEEPER!r}], start_new_session=True);"
        f"open({str(pids)!r}, 'w').write(str(p.pid))"
    )
    ended = contained([sys.executable, "-c", parent], timeout=600, cwd=tmp_path, log=tmp_path / "log")
    assert not ended.timed_out and ended.code == 0 and ended.left_behind == 1
    assert not _runs(int(pids.read_text()))


def _runs(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has waited for."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
