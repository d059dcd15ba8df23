"""`espnet3 watch`: on a terminal, without one, of a run at work, of a finished one, of a folder of runs."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from espnet3.cli import watching
from espnet3.cli.drawing import drawn
from espnet3.cli.runs import status
from espnet3.cli.watching import look, watch
from espnet3.parallel import ItemError, set_parallel
from espnet3.parallel.ledger.files import read_json
from espnet3.parallel.views.live import Watcher, Worker
from tests.parallel.detached.work import ROOT, Provider, Squares, held, hold, let_go, run_of, shut
from tests.parallel.views.test_report import HELD


def ordinary(folder: Path, name: str = "run", **arguments: Any) -> None:
    """Make a run of four items, of which one fails."""
    set_parallel(None)
    config = {"folder": str(folder), "bad": [2, "raise"]}
    runner = Squares(Provider(config), output_dir=folder / name, progress=False, **arguments)
    try:
        runner(range(4))
    except ItemError:
        assert not arguments


def shown(folder: Path, width: int) -> str:
    """Return what a terminal of a width shows of a folder."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(drawn(look(folder, {}), now=0.0))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_how_far_a_run_is_and_what_failed(tmp_path: Path, width: int) -> None:
    """At 80 and 120 columns no line is too long, and counts, state and the cause of the failure are there."""
    ordinary(tmp_path, on_error="record")
    text = shown(tmp_path / "run", width)
    assert max(map(len, text.splitlines())) <= width
    assert "complete" in text and "4 of 4 items, 1 failed" in text
    assert "error: 1 x ValueError" in text and "no square of 2" in text


def test_where_room_is_short_only_long_texts_are_cut(tmp_path: Path) -> None:
    """With a long host and a long note a worker's name, state, counts and memory stay whole at 80 columns."""
    ordinary(tmp_path, on_error="record")
    workers = (
        Worker("shard 12", "running", f"{'a-long-host.' * 5}, process 20413", 300, 260, "item 861", 5.0),
        Worker("shard 13", "out_of_memory", "1234.7", 300, 152, note="killed " * 20, peak=1230 << 20),
    )
    facts = replace(Watcher(tmp_path / "run").look(), workers=workers)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(drawn([facts], now=6.0))
    text = console.export_text()
    rows = [line for line in text.splitlines() if line.startswith("shard")]
    assert rows[0].split()[:3] == ["shard", "12", "running"] and "260/300" in rows[0] and "1 s" in rows[0]
    assert "out of memory" in rows[1] and "152/300" in rows[1] and "≤ 1.2 GiB" in rows[1]
    assert all("…" in row and len(row) <= 80 for row in rows)


def test_a_folder_of_runs_has_a_line_for_each(tmp_path: Path) -> None:
    """A folder above runs shows a line and a bar for each, at 80 columns."""
    ordinary(tmp_path, "one", on_error="record")
    ordinary(tmp_path, "two")
    text = shown(tmp_path, 80)
    assert "one: 4 of 4 items" in text and "complete" in text
    assert "two: 3 of 4 items" in text and "no process works on it" in text
    done = CliRunner().invoke(watch, [str(tmp_path)])
    assert done.exit_code == 1 and len(done.output.splitlines()) == 2


def test_the_facts_are_those_of_status(tmp_path: Path) -> None:
    """`watch --json` says what `status --json` says, and more."""
    ordinary(tmp_path, on_error="record")
    run = str(tmp_path / "run")
    said = json.loads(CliRunner().invoke(watch, [run, "--json"]).output)
    of_status = json.loads(CliRunner().invoke(status, [run, "--json"]).output)
    assert {name: said[name] for name in of_status} == of_status
    assert said["failures"][0]["count"] == 1 and said["failures"][0]["indices"] == ["2"]


def test_an_unfinished_run_is_counted_as_status_counts_it(tmp_path: Path) -> None:
    """Before the merge, what is read bit by bit gives the same numbers."""
    ordinary(tmp_path)
    run = str(tmp_path / "run")
    said = json.loads(CliRunner().invoke(watch, [run, "--json"]).output)
    of_status = json.loads(CliRunner().invoke(status, [run, "--json"]).output)
    assert {name: said[name] for name in of_status} == of_status
    assert not said["merged"] and said["failures"][0]["error_type"] == "ValueError"


def test_the_rate_is_that_of_the_last_minute_of_watching(tmp_path: Path) -> None:
    """The rate is what has come in between two looks, over the time between them."""
    ordinary(tmp_path)
    run = tmp_path / "run"
    times = iter([0.0, 2.0])
    results = run / "split.0/results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:1]) + lines[1][:5])  # torn: its writer is at it
    watcher = Watcher(run, clock=lambda: next(times))
    assert watcher.look().rate == 0.0
    results.write_bytes(b"".join(lines))
    assert watcher.look().rate == (len(lines) - 1) / 2.0


def test_a_detached_run_shows_what_its_shards_are_in(tmp_path: Path) -> None:
    """While a job is held at an item, its shard's row names it by its index, the host, the process and its memory."""
    folder = tmp_path / "runs"
    folder.mkdir()
    hold(folder, 31)
    run = run_of(folder, n=range(30, 34), workers=1, shards=2)
    try:
        pid = held(folder, 31)
        watcher = Watcher(run.path)
        facts = watcher.look()
        worker = facts.workers[0]
        assert (worker.name, worker.state) == ("shard 0", "running")
        assert worker.doing == "item 31" and worker.since > 0 and str(pid) in worker.where
        assert facts.memory == worker.memory > 0 and facts.left == 4 - facts.status.ok
        assert facts.slow[0][1] == "item 31 of shard 0"
        let_go(folder, 31)
        assert run.wait(600).done
        facts = watcher.look()
        assert facts.status.ok == 4
        assert [name for _, name in facts.slow if "31" in name] == ["item 31"], "seen, and then timed"
    finally:
        shut(run)


def test_a_split_that_begins_while_somebody_looks_is_counted_later(tmp_path: Path) -> None:
    """Its folder is there before what it says of itself, and it is not taken for one of another index list."""
    ordinary(tmp_path)
    run = tmp_path / "run"
    (split,) = run.glob("split.*")
    split.rename(tmp_path / "whole")
    split.mkdir()
    watcher = Watcher(run)
    assert (watcher.look().status.ok, watcher.look().status.notes) == (0, ())
    split.rmdir()
    (tmp_path / "whole").rename(split)
    found = watcher.look()
    assert (found.status.ok, found.status.failed, found.status.notes) == (2, 1, ())


def test_q_leaves_and_the_run_goes_on(tmp_path: Path) -> None:
    """On a terminal, q ends `watch` with the exit status of a run at work; its driver then finishes as if alone."""
    hold(tmp_path, 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "25"}
    with subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], cwd=ROOT) as driver:
        held(tmp_path, 1)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-c", "from espnet3.cli.main import main; main()", "watch"]
        with subprocess.Popen(
            [*command, str(tmp_path / "run")], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        ) as watching_it:
            os.close(theirs)
            seen = b""
            while b"q leaves" not in seen:
                assert select.select([ours], [], [], 600)[0], seen
                seen += os.read(ours, 4096)
            os.write(ours, b"q")
            while True:
                try:
                    seen += os.read(ours, 4096)
                except OSError:  # it has closed its terminal
                    break
            assert watching_it.wait(600) == 75, seen
        os.close(ours)
        assert b"driver" in seen and b"of 3 items" in seen
        let_go(tmp_path, 1)
        assert driver.wait(600) == 0
    assert read_json(tmp_path / "run/receipt.json")["ok"] == 3


def test_a_missing_rich_is_said_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal without rich the error holds the pip line."""
    ordinary(tmp_path)
    monkeypatch.setattr(watching, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install .*\[report\]"):
        watching._on_terminal(tmp_path / "run", {})


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    """A folder that holds no run is an error that says what to give."""
    done = CliRunner().invoke(watch, [str(tmp_path)])
    assert done.exit_code == 1 and "holds no run" in done.stderr
