"""A run folder is data, whoever wrote it: what it says is neither run nor signalled, and is written to nowhere else."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import DetachedRun
from espnet3.parallel.detached.launch import job_arrays
from espnet3.parallel.detached.layout import TEMPLATE
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.lease import this_process
from espnet3.parallel.views.replaying import Replay
from tests.habits import rows
from tests.parallel.clusters.stranger import NOBODY
from tests.parallel.detached.work import espnet3, run_of
from tests.standins import standin
from tests.waiting import wait_until

OUTSIDE = "x/../../../../precious"
ESPNET3 = [sys.executable, "-m", "espnet3_parallel"]
ACTS: dict[str, Callable[[Path], object]] = {
    "cancel": lambda run: DetachedRun.open(run).cancel(0),
    "retry": lambda run: DetachedRun.open(run).retry(),
    "submit": lambda run: DetachedRun.open(run).submit(),
    "merge": lambda run: DetachedRun.open(run).merge(),
    "replay": Replay,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> DetachedRun:
    """Run six items to their end, as two shards."""
    run: DetachedRun = run_of(tmp_path_factory.mktemp("run") / "place", n=6, shards=2)
    assert run.wait(600).done
    return run


@pytest.fixture
def copy(finished: DetachedRun, tmp_path: Path) -> Path:
    """Return a copy of a finished run, as whoever downloads one has it: its maker says that it was submitted there."""
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", finished.path, folder], check=True)
    change(folder / "detached" / TEMPLATE, run=str(folder))
    return folder


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return a script that says in a file, which is not there yet, that it was run."""
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/was-run\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of this user's that is none of a run."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def change(file: Path, **facts: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


def submitted(run: Path, ids: dict[str, str], **array: Any) -> None:
    """Have a run say that these jobs of PBS were submitted, and that nothing is known of their end."""
    change(run / "detached/plan.json", env="pbs", options={"cores": 1, "memory": "1GB"})
    change(run / "detached/jobs.json", jobs=ids)
    (run / "detached/scheduler").mkdir(exist_ok=True)
    (run / "detached/scheduler/array.0.json").write_text(json.dumps({"env": "pbs", "jobs": ids, **array}))
    for shard in ids:
        (run / f"detached/shard.{shard}/done").unlink()


def test_cancel_runs_the_schedulers_command_and_no_other(
    copy: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argv that stands in the folder is not what cancels its jobs, nor is a command that it has in PATH."""
    monkeypatch.setattr(job_arrays, "_AGAIN", 0.5)
    submitted(copy, {"0": "1"}, cancel=[str(marker), "-c", "0"])
    for name in ("qstat", "qdel"):
        (copy / name).symlink_to(marker)
    (copy / "detached/scheduler/place.json").write_text(json.dumps({"PATH": str(copy)}))
    with standin("pbs"):
        assert not DetachedRun.open(copy).cancel(0.2).alive
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_CONF", "evil.conf"), ("CONDOR_CONFIG", "/nowhere"), ("SGE_CELL", "../x"), ("PBS_SERVER", 7)],
)
def test_no_configuration_of_a_scheduler_is_taken_from_the_folder(
    copy: Path, tmp_path: Path, name: str, value: Any
) -> None:
    """What its commands read is the site's own, or what the caller has set: they run what is named there."""
    submitted(copy, {"0": "1"})
    (copy / "detached/scheduler/evil.conf").write_text("PluginDir=there")
    for at in [value, str(copy / "detached/scheduler/evil.conf")] if name == "SLURM_CONF" else [value]:
        (copy / "detached/scheduler/place.json").write_text(json.dumps({name: at}))
        with standin("pbs"):
            done = espnet3("cancel", copy, cwd=tmp_path, ok=False)
        assert done.returncode == 1 and f"if that is right, set {name}=" in done.stderr


@pytest.mark.parametrize("job", rows(["--user=root", "1/2", OUTSIDE, "", 7], ["--user=root", OUTSIDE]))
def test_an_id_that_no_scheduler_gives_is_no_word_of_a_command(copy: Path, tmp_path: Path, job: Any) -> None:
    """Cancelling such a job, and asking for it, ends with a message that shows it; no file of the user's goes."""
    (tmp_path / "precious").write_text("mine")
    submitted(copy, {"0": job}, cancel=["true", job])
    (copy / "detached/scheduler/ended.x").mkdir()
    with standin("pbs"):
        for verb in ("cancel", "status"):
            done = espnet3(verb, copy, cwd=tmp_path, ok=False)
            assert done.returncode == 1 and re.search(rf"is damaged: .*{re.escape(repr(job))}", done.stderr)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("place", ["shard.0", "supervisor"])
def test_cancel_signals_no_process_that_is_none_of_the_run(
    copy: Path, other: subprocess.Popen[bytes], tmp_path: Path, place: str
) -> None:
    """A lease may name any process of the user's: only workers and supervisors of this run are ended."""
    pid = other.pid
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    lease = {**this_process(), "pid": pid, "process_start": start}
    folder = copy / "detached" / place
    folder.mkdir(exist_ok=True)
    (folder / "lease.99.json").write_text(json.dumps(lease))
    with subprocess.Popen([*ESPNET3, "cancel", copy, "--grace", "0"], stderr=subprocess.DEVNULL) as cancel:
        wait_until((copy / "detached" / "stop.json").exists)  # from here on it signals
        try:
            cancel.wait(5)  # longer it waits for whoever holds the lease, in vain
        except subprocess.TimeoutExpired:
            cancel.kill()
    assert other.poll() is None


@pytest.mark.parametrize(
    "facts", [{"python": "SCRIPT"}, {"first": "../out"}, {"first": -7}], ids=["interpreter", "text", "number"]
)
def test_retry_runs_and_writes_nothing_that_the_plan_says(
    copy: Path, marker: Path, tmp_path: Path, facts: dict[str, Any]
) -> None:
    """The interpreter is the caller's; outcomes are in the folder, and specs beside them."""
    change(copy / "detached/plan.json", specs=str(tmp_path / "elsewhere"), options={})
    change(copy / "detached/plan.json", **json.loads(json.dumps(facts).replace("SCRIPT", str(marker))))
    for shard in (0, 1):
        (copy / f"split.{shard}/results.jsonl").unlink()
        (copy / f"detached/shard.{shard}/done").unlink()
    before = {path.name for path in tmp_path.iterdir()}
    espnet3("retry", copy, cwd=tmp_path, ok=False)
    if "python" in facts:
        DetachedRun.open(copy).wait(600)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("verb", "file"),
    rows(
        [
            ("logs", "detached/shard.0/log.txt"),
            ("status", "detached/shard.0/mark.json"),
            ("wait", "detached/shard.1/done"),
            ("report", "events.jsonl"),
            ("merge", "split.0/results.jsonl"),
            ("watch", "split.0/results.jsonl"),
        ],
        [("status", "detached/shard.0/mark.json"), ("merge", "split.0/results.jsonl")],
    ),
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    copy: Path, tmp_path: Path, verb: str, file: str
) -> None:
    """Whatever a verb reads, it opens regular files alone."""
    (copy / file).unlink(missing_ok=True)
    os.mkfifo(copy / file)
    words = {"watch": ["--json"], "report": ["--format", "json"]}.get(verb, [])
    try:
        espnet3(verb, copy, *words, cwd=tmp_path, ok=False, seconds=60)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{verb} waits for a writer of {file}")


def test_nothing_is_appended_through_a_link(copy: Path, tmp_path: Path) -> None:
    """A link in place of a file of the run does not lead to a file of the user's."""
    mine = tmp_path / "mine"
    mine.write_text("")
    (copy / "events.jsonl").unlink()
    (copy / "events.jsonl").symlink_to(mine)
    espnet3("merge", copy, "--trust", cwd=tmp_path, ok=False)
    assert mine.read_text() == ""


def theirs(file: Path) -> None:
    """Give a file or folder to the stranger."""
    os.chown(file, NOBODY, NOBODY)


def everybodys(file: Path) -> None:
    """Let everybody write to a file or folder."""
    file.chmod(0o777)


def shared(file: Path) -> None:
    """Let the stranger's group write to a file or folder."""
    os.chown(file, -1, NOBODY)
    file.chmod(0o770)


@pytest.mark.accounts
@pytest.mark.parametrize("make", [theirs, everybodys, shared])
@pytest.mark.parametrize("part", ["", "detached", "detached/plan.json", "split.0/results.jsonl", "run.json"])
def test_nobody_acts_on_what_others_may_have_written(
    copy: Path, make: Callable[[Path], None], part: str
) -> None:
    """Verbs that act refuse the folder and name the part; those that show it read it; trust=True acts."""
    copy.chmod(0o755)  # else what is in it cannot be reached
    (copy / part).parent.chmod(0o755)
    make(copy / part)
    for act in ACTS.values():
        with pytest.raises(ConfigError, match=f"^{re.escape(os.path.normpath(copy / part))} .*--trust"):
            act(copy)
    assert DetachedRun.open(copy).status().done
    assert len(DetachedRun.open(copy, trust=True).merge()) == 6


@pytest.mark.accounts
@pytest.mark.parametrize("verb", rows([*ACTS], ["cancel", "replay"]))
def test_the_command_refuses_as_well_unless_it_is_told_to_trust(
    copy: Path, tmp_path: Path, verb: str
) -> None:
    """Each verb that acts ends with 1, and has the option that says otherwise."""
    copy.chmod(0o777)
    words = ["0"] if verb == "replay" else []
    done = espnet3(verb, copy, *words, cwd=tmp_path, ok=False)
    assert done.returncode == 1 and f"{copy} can be written to by everybody" in done.stderr
    done = espnet3(verb, copy, *words, "--trust", cwd=tmp_path, ok=False)
    assert "can be written to" not in done.stderr


@pytest.mark.accounts
def test_a_umask_of_002_is_no_reason_to_refuse(copy: Path) -> None:
    """What others cannot reach, and what is only this user's own group's, is acted upon."""
    for path in copy.rglob("*"):
        path.chmod(0o775 if path.is_dir() else 0o664)
    copy.chmod(0o775)
    assert len(DetachedRun.open(copy).merge()) == 6
    for path in copy.rglob("*"):
        os.chown(path, -1, NOBODY)
    copy.chmod(0o700)
    assert len(DetachedRun.open(copy).merge()) == 6
