"""`espnet3-parallel watch`: on a terminal, without one, of a run at work, of a finished one, of a folder of runs."""

import io
import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from espnet3.parallel import ItemError
from espnet3.parallel.ledger.files import read_json
from espnet3.parallel.views.live import Watcher
from espnet3_parallel import watching
from espnet3_parallel.drawing import drawn
from espnet3_parallel.runs import status
from espnet3_parallel.watching import look, watch
from tests.parallel.detached.work import ROOT, Provider, Squares, held, hold, let_go, run_of, shut
from tests.parallel.views.test_report import HELD


def ordinary(folder: Path, name: str = "run", **arguments: Any) -> None:
    config = {"folder": str(folder), "bad": [2, "raise"]}
    runner = Squares(Provider(config), output_dir=folder / name, progress=False, **arguments)
    try:
        runner(range(4))
    except ItemError:
        assert not arguments


def shown(folder: Path, width: int) -> str:
    """Return what a terminal of a width shows of a folder."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(drawn(look(folder, {}), folder, now=0.0))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_how_far_a_run_is_and_what_failed(tmp_path: Path, width: int) -> None:
    """At 80 and 120 columns no line is too long, and counts, state and the cause of the failure are there."""
    ordinary(tmp_path, on_error="record")
    text = shown(tmp_path / "run", width)
    assert max(map(len, text.splitlines())) <= width
    assert "complete" in text and "4 of 4 items, 1 failed" in text
    assert "error: 1 x ValueError" in text and "no square of 2" in text


def test_a_folder_of_runs_has_a_line_for_each(tmp_path: Path) -> None:
    """A folder above runs shows a line and a bar for each, named by its path below that folder, at 80 columns."""
    ordinary(tmp_path, "one/decode", on_error="record")
    ordinary(tmp_path, "two/decode")
    text = shown(tmp_path, 80)
    assert "one/decode: 4 of 4 items" in text and "complete" in text
    assert "two/decode: 3 of 4 items" in text and "no process works on it" in text
    done = CliRunner().invoke(watch, [str(tmp_path)])
    assert done.exit_code == 1
    assert [line.partition(":")[0] for line in done.output.splitlines()] == ["one/decode", "two/decode"]


@pytest.mark.parametrize("arguments", [{"on_error": "record"}, {}], ids=["merged", "unfinished"])
def test_the_facts_are_those_of_status(tmp_path: Path, arguments: dict[str, str]) -> None:
    """`watch --json` says what `status --json` says, and more, before the merge too."""
    ordinary(tmp_path, **arguments)
    run = str(tmp_path / "run")
    said = json.loads(CliRunner().invoke(watch, [run, "--json"]).output)
    of_status = json.loads(CliRunner().invoke(status, [run, "--json"]).output)
    assert {name: said[name] for name in of_status} == of_status
    assert said["failures"][0]["count"] == 1 and said["failures"][0]["indices"] == ["2"]


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
    hold(folder, 31)
    run = run_of(folder, n=range(30, 34), workers=1, shards=2)
    try:
        pid = held(folder, 31)
        watcher = Watcher(run.path)
        facts = watcher.look()
        worker = facts.workers[0]
        assert (worker.name, worker.state) == ("shard 0", "running")
        assert worker.doing == "item 31" and worker.since > 0 and str(pid) in worker.where
        assert facts.memory == worker.memory > 0 and facts.status.items == 4
        assert facts.slow[0][1] == "item 31 of shard 0"
        let_go(folder, 31)
        assert run.wait(600).done
        facts = watcher.look()
        assert facts.status.ok == 4
        assert [name for _, name in facts.slow if "31" in name] == ["item 31"], "seen, and then timed"
    finally:
        shut(run)


def test_q_leaves_and_the_run_goes_on(tmp_path: Path) -> None:
    """On a terminal, q ends `watch` with the exit status of a run at work; its driver then finishes as if alone."""
    hold(tmp_path, 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "25"}
    with subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], cwd=ROOT) as driver:
        held(tmp_path, 1)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "espnet3_parallel", "watch"]
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
    assert done.exit_code == 2 and "holds no run" in done.stderr
