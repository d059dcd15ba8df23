"""`espnet3-parallel status` and `wait`, of runs with jobs and without, and `--version`."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from espnet3.parallel import ItemError
from espnet3_parallel.main import main
from espnet3_parallel.runs import merge, retry, status, wait
from tests.parallel.detached.work import ROOT, Provider, Squares, held, hold, let_go, run_of, shut
from tests.parallel.views.test_report import HELD


def ordinary(folder: Path, **config: Any) -> Squares:
    """Return a runner without jobs."""
    return Squares(Provider({"folder": str(folder), **config}), output_dir=folder / "run", progress=False)


def test_an_ordinary_run_has_a_status(tmp_path: Path) -> None:
    """A run that an item stopped says what is done and how to go on; a finished one that it is complete."""
    with pytest.raises(ItemError):
        ordinary(tmp_path, bad=[2, "raise"])(range(4))
    done = CliRunner().invoke(status, [str(tmp_path / "run")])
    assert done.exit_code == 1
    words = " ".join(done.output.split())
    assert (
        "3 of 4 items, 1 failed" in words and "the same call of the runner computes the 1 that are" in words
    )
    (tmp_path / "repaired").touch()
    ordinary(tmp_path, bad=[2, "raise"])(range(4))
    done = CliRunner().invoke(status, [str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0
    said = json.loads(done.output)
    assert {name: said[name] for name in ("items", "ok", "failed", "alive", "merged", "done")} == {
        "items": 4,
        "ok": 4,
        "failed": 0,
        "alive": False,
        "merged": True,
        "done": True,
    }


def test_wait_waits_for_an_ordinary_driver(tmp_path: Path) -> None:
    """While a driver is at work `status` names it and `wait` waits; they end with it."""
    hold(tmp_path, 1)
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as driver:
        assert held(tmp_path, 1) == driver.pid
        done = CliRunner().invoke(status, [str(tmp_path / "run")])
        assert done.exit_code == 75 and f"process {driver.pid} on" in " ".join(done.output.split())
        timed = CliRunner().invoke(wait, [str(tmp_path / "run"), "--timeout", "0.3"])
        assert timed.exit_code == 75 and re.search(r"^\d of 3 items, 0 failed$", timed.stderr, re.MULTILINE)
        let_go(tmp_path, 1)
        assert CliRunner().invoke(wait, [str(tmp_path / "run")]).exit_code == 0
        assert driver.wait() == 0


def test_a_run_with_jobs_that_a_driver_finished_is_complete(tmp_path: Path) -> None:
    """A run of jobs that an ordinary call finished is complete for `status`, until a retry adds to it."""
    run = run_of(tmp_path, n=4, shards=2, workers=1, config={"bad": [1, "raise"]}, on_error="record")
    run.cancel()
    run_of(tmp_path, n=4, config={"bad": [1, "raise"]}, on_error="record", async_mode=False)
    done = CliRunner().invoke(status, [str(run.path)])
    assert done.exit_code == 0, done.output
    run.retry(failed_items=True)
    assert not run.status().merged
    run.wait(600)
    shut(run)


def test_other_verbs_say_that_an_ordinary_run_has_no_jobs(tmp_path: Path) -> None:
    """`retry` and `merge` of an ordinary run say what to do instead; a folder without a run names those below."""
    ordinary(tmp_path)(range(2))
    for verb in (retry, merge):
        done = CliRunner().invoke(verb, [str(tmp_path / "run")])
        assert done.exit_code == 1 and "goes on when its runner is called again" in done.stderr
    done = CliRunner().invoke(status, [str(tmp_path)])
    assert done.exit_code == 2 and "holds no run (there are runs in run)" in done.stderr


def test_watch_shows_every_change_until_the_end(tmp_path: Path) -> None:
    """`status --watch` prints until no job is left, and its exit status is that of the end."""
    hold(tmp_path, 0)
    run = run_of(tmp_path, n=2, shards=2)
    held(tmp_path, 0)
    command = [sys.executable, "-m", "espnet3_parallel", "status", str(run.path)]
    with subprocess.Popen([*command, "--watch"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith(str(run.path))  # the rest may stand on the next line
        let_go(tmp_path, 0)
        assert "2 of 2 items, 0 failed" in " ".join(watching.stdout.read().split())
    assert watching.returncode == 0
    done = CliRunner().invoke(status, [str(run.path), "--watch", "--json"])
    assert done.exit_code == 2 and "--json for programs" in done.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    """`espnet3-parallel --version` names the distribution, its version and the Python."""
    done = CliRunner().invoke(main, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith(f"espnet3-parallel {version('espnet3-parallel')}, Python 3.")


def test_a_file_that_cannot_be_read_is_no_traceback(tmp_path: Path) -> None:
    """An error of the file system is one line, as an error of the package is."""
    (tmp_path / "detached").write_text("")
    done = CliRunner().invoke(merge, [str(tmp_path)])
    assert done.exit_code == 1 and done.stderr.startswith("NotADirectoryError: [Errno 20]"), done.stderr


def test_a_report_that_cannot_be_written_is_a_mistake_of_usage(tmp_path: Path) -> None:
    """The option and the file are named, and the exit status is that of a wrong option."""
    Squares(Provider({"folder": str(tmp_path)}), output_dir=tmp_path / "run", progress=False)(range(2))
    done = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "no" / "x.html")])
    assert done.exit_code == 2 and "Invalid value for -o" in done.output, done.output
    assert f"{tmp_path}/no/x.html cannot be written: No such file or directory" in done.output
