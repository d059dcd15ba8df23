"""Job arrays of the schedulers that have only a stand-in here: PBS, LSF and Moab."""

import sys
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, DetachedRun, set_parallel
from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.work import Provider, Squares, builds, calls, held, here, hold, kill, let_go
from tests.standins import standin
from tests.standins.place import NAMES
from tests.waiting import wait_until

OWN: dict[str, dict[str, Any]] = {
    "lsf": {"lsf_units": "mb", "walltime": "00:10"},
    "htcondor": {"disk": "1GB"},
}


def submit(
    name: str,
    folder: Path,
    n: int = 6,
    shards: int = 3,
    detached: dict[str, Any] | None = None,
    progress: bool = False,
    **options: Any,
) -> DetachedRun:
    options = {"cores": 1, "memory": "1GB", **OWN.get(name, {"walltime": "00:10:00"}), **options}
    block = {"shards": shards, **(detached or {})}
    set_parallel({"env": name, "n_workers": 2, "options": options, "detached": block})
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(Provider({"folder": str(folder)}), **folders, async_mode=True, progress=progress)
    return runner(range(n))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "shards"),
    rows([(name, shards) for name in NAMES for shards in (1, 3)], [("lsf", 3), ("htcondor", 1)]),
)
def test_an_array_gives_the_results_of_this_process(name: str, shards: int, tmp_path: Path) -> None:
    """An array, and a job alone, leave the same bytes as a run in this process, from a folder of any name."""
    folder = tmp_path / "a «b» 'c' $(d)"
    folder.mkdir()
    with standin(name):
        run = submit(name, folder, shards=shards)
        status = run.wait(600)
        assert status.done, (status, dict(run.logs()))
        run.merge()
    assert (folder / "run/results.jsonl").read_bytes() == here(tmp_path / "b", n=6)
    assert set(calls(folder).values()) == {1}


@pytest.mark.parametrize("name", rows([*NAMES], ("moab",)))
def test_states_and_cancel(name: str, tmp_path: Path) -> None:
    """What waits is `pending` in the scheduler's list, `cancel` ends all, `retry` completes."""
    hold(tmp_path, 0)
    with standin(name, slots=1):
        run = submit(name, tmp_path)
        held(tmp_path, 0)
        states = [shard.state for shard in run.status().shards]
        assert states == [JobState.RUNNING, JobState.PENDING, JobState.PENDING]
        assert run.cancel(grace=0.2).counts == {JobState.CANCELLED: 3}
        let_go(tmp_path, 0, dead=True)
        run.retry()
        status = run.wait(600)
        assert status.done, (status, dict(run.logs()))
    assert calls(tmp_path) == {i: 2 if i == 0 else 1 for i in range(6)}


@pytest.mark.parametrize("name", rows([*NAMES], ("pbs",)))
def test_elements_go_on_with_the_shards_of_others(name: str, tmp_path: Path) -> None:
    """Two elements at a time build two envs for all shards; the others find theirs done, and end at once.

    Of an element that is killed in its second shard only the item in flight runs again, in that shard's own element.
    """
    for item in (0, 1):
        hold(tmp_path, item)
    with standin(name, slots=2) as queue:
        run = submit(name, tmp_path, 8, 8)
        for item in (0, 1):
            held(tmp_path, item)
        for item in (0, 1):
            let_go(tmp_path, item)
        status = run.wait(600)
        assert status.done, (status, dict(run.logs()))
        wait_until(lambda: not queue.unfinished())
        assert {each.exit_code for each in queue.jobs()} == {0}
    assert builds(tmp_path) == 2 and set(calls(tmp_path).values()) == {1}
    killed = tmp_path / "killed"
    hold(killed, 2)
    with standin(name, slots=1):
        run = submit(name, killed)
        kill(held(killed, 2))
        let_go(killed, 2, dead=True)
        status = run.wait(600)
        assert status.done, (status, dict(run.logs()))
    assert builds(killed) == 2 and calls(killed) == {i: 2 if i == 2 else 1 for i in range(6)}


@pytest.mark.parametrize("name", rows([*NAMES], ("lsf",)))
def test_the_prologue_is_run_in_the_submitters_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a driver's jobs: relative paths of the prologue and of the interpreter are those of the submitter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/activate").write_text('pwd >> "$PWD/activated"\n')
    (tmp_path / "envs/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "envs/python").chmod(0o700)
    with standin(name):
        run = submit(name, tmp_path, 2, 2, job_script_prologue=[". envs/activate"], python="envs/python")
        status = run.wait(150)
        assert status.done, (status, dict(run.logs()))
    assert (tmp_path / "activated").read_text().splitlines() == [str(tmp_path)] * 2


@pytest.mark.parametrize("name", rows([*NAMES], ("pbs", "htcondor")))
def test_output_goes_to_the_log_directory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is named for logs has what the jobs' scripts print, and `logs` reads it; or its name is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    logs = "~/my logs"
    with standin(name):
        if name == "htcondor":
            with pytest.raises(ConfigError, match=r"my logs' than letters, digits"):
                submit(name, tmp_path, 2, 2, log_directory=logs)
            logs = "~/my_logs"
        run = submit(name, tmp_path, 2, 2, job_script_prologue=["echo before"], log_directory=logs)
        assert run.wait(600).done, dict(run.logs())
        wait_until(
            lambda: all(text.startswith("before") for _, text in run.logs()), said=lambda: [*run.logs()]
        )
    assert "before" in "".join(file.read_text() for file in Path(logs).expanduser().iterdir())
