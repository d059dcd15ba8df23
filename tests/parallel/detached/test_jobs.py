"""What one job restores, and when it stops."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from espnet3.parallel import ParallelError, SubmissionError, set_parallel
from espnet3.parallel.detached.job.attempt import EXIT_DONE, EXIT_UNFINISHED
from espnet3.parallel.detached.launch import job_arrays
from espnet3.parallel.detached.launch.job_arrays import make_job
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.parallel.detached.test_scripts import job_of
from tests.parallel.detached.work import (
    ROOT,
    Provider,
    Squares,
    builds,
    calls,
    espnet3,
    held,
    hold,
    let_go,
    python,
    run_of,
    supervised,
)
from tests.waiting import wait_until

SLOW = """
import os, time
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"begin": time.monotonic()}

class Slow(BaseRunner):
    @staticmethod
    def forward(idx, begin):
        time.sleep(4.5 if idx == 3 else 0)
        return [os.getcwd(), os.environ.get("MINE"), os.environ.get("OTHER")]
"""


def worker(*words: object) -> int:
    """Run a job's process to its end."""
    return python("-m", "espnet3.parallel.worker", *words, cwd="/").returncode


LATE_SIGNAL = """
import os, signal, sys
from espnet3.parallel import worker
from espnet3.parallel.ledger.lease import Lease

release = Lease.release

def signalled(lease):
    os.kill(os.getpid(), signal.SIGTERM)
    release(lease)

Lease.release = signalled
sys.exit(worker.main(sys.argv[1:]))
"""


def test_a_signal_at_a_jobs_very_end_interrupts_nothing(tmp_path: Path) -> None:
    """Told to stop before its env is built, and signalled while it gives its lease back, it writes both down."""
    run = run_of(tmp_path / "a", n=4, shards=1)
    assert run.wait(600).done
    layout = Layout(run.path)
    for file in (layout.shard(0) / "done", layout.shard(0) / "mark.json", *run.path.glob("split.*/*.jsonl")):
        file.unlink(missing_ok=True)
    layout.order_stop({"state": "cancelled", "why": "a test"})
    done = python("-c", LATE_SIGNAL, run[0].spec, cwd="/")
    assert done.returncode == EXIT_UNFINISHED, done
    assert "Traceback" not in done.stderr, done.stderr
    assert json.loads((layout.shard(0) / "ended.json").read_text())["why"] == "a test"
    leases = sorted(layout.shard(0).glob("lease.*.json"), key=lambda file: int(file.suffixes[0][1:]))
    assert "released" in json.loads(leases[-1].read_text())


def test_a_job_stops_before_its_walltime_and_goes_on(tmp_path: Path) -> None:
    """With too little time for another item it ends `unfinished` and asks to be queued again; no item runs twice."""
    run = run_of(tmp_path / "a", n=4, shards=1)
    assert run.wait(600).done
    spec = json.loads(run[0].spec.read_text())
    layout = Layout(run.path)
    for name in ("done", "mark.json"):
        (layout.shard(0) / name).unlink()
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    reference = {"module": "slow", "file": str(slow), "script": False}
    there = spec["surroundings"]
    changed = {
        **spec,
        "walltime": 18.0,  # of which the prologue takes 8: after item 3 there is no time for another like it
        "items": {"range": [0, 40, 1]},
        "runner": {**reference, "name": "Slow"},
        "provider": {**reference, "name": "Provider"},
        "surroundings": {**there, "sys_path": [str(tmp_path), *there["sys_path"]]},
    }
    layout.write_plan(replace(layout.plan(), first=9))
    (run.path / "split.9").mkdir()
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(changed))
    job = [sys.executable, "-m", "espnet3.parallel.worker", file]
    done = subprocess.run(["sh", "-c", 'sleep 8; exec "$@"', "job", *job], cwd="/", check=False)
    assert done.returncode == EXIT_UNFINISHED
    ended = json.loads((layout.shard(0) / "ended.json").read_text())
    assert ended["state"] == "unfinished" and ended["why"].startswith("its walltime is nearly over")
    assert ended["requeue"]
    first = (run.path / "split.9/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in first] == list(range(4))
    file.write_text(json.dumps({**changed, "walltime": None}))
    assert worker(file) == EXIT_DONE
    lines = (run.path / "split.9/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(40))


def test_an_element_that_stops_in_its_second_shard_goes_on_there(tmp_path: Path) -> None:
    """Its index picks its own spec; it asks to be queued again, and its next start finds the shard that it has left."""
    folder = tmp_path / "a"
    slow = {"bad": [0.2, "slow"]}  # longer than a job goes on without asking whether it was told to stop
    run = run_of(folder, n=4, shards=2, workers=1, config=slow)
    assert run.wait(600).done
    layout = Layout(run.path)
    wait_until(lambda: not supervised(run))  # it would start again what is removed here
    for file in (*run.path.glob("detached/shard.*/*"), *run.path.glob("split.*/*")):
        file.unlink()
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"first": 5, "run": str(run.path), "shards": [0, 1]}))
    hold(folder, 2)
    command = [sys.executable, "-m", "espnet3.parallel.worker", "--again", "99", "--tasks", str(tasks), "5"]
    with subprocess.Popen(command, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        assert held(folder, 2) == process.pid
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "stopping" in (layout.shard(1) / "mark.json").read_text())
        let_go(folder, 2)
        assert process.wait() == 99
    assert "unfinished: it was sent SIGUSR1" in dict(run.logs())[1]
    assert worker(*command[3:]) == EXIT_DONE
    assert run.status().done and builds(folder) == 3
    # `python espnet3/parallel/base_runner.py SPEC` is a job's process, too
    (layout.shard(0) / "done").unlink()
    command = [sys.executable, str(ROOT / "espnet3/parallel/base_runner.py"), str(run[0].spec)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=True)
    assert run.status().done


def test_a_job_goes_on_with_shards_that_wait(tmp_path: Path) -> None:
    """Two jobs build two envs for fourteen shards, and what is printed is in the log of the shard that is worked on."""
    folder = tmp_path / "a"
    for item in (0, 1):
        hold(folder, item)
    run = run_of(folder, n=14, shards=14)
    for item in (0, 1):
        held(folder, item)
    for item in (0, 1):
        let_go(folder, item)
    assert run.wait(600).done and len(run.merge()) == 14
    assert builds(folder) == 2 and set(calls(folder).values()) == {1}
    logs = dict(run.logs())
    assert all(logs[shard].count("done: 1 ok") == 1 for shard in range(14)), logs


def test_a_job_is_where_the_submitter_was(tmp_path: Path) -> None:
    """Working directory, additions to sys.path and chosen variables are the submitter's, whoever starts the job."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/slow_one.py").write_text(SLOW)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.append({str(tmp_path / "code")!r})
        from slow_one import Provider, Slow, set_parallel
        set_parallel({{"env": "local", "detached": {{"shards": 1, "variables": ["MINE"]}}}})
        Slow(Provider(), output_dir="run", async_mode=True)(range(1))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINE": "a b", "TZ": "UTC"}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True)
    run = DetachedRun.open(tmp_path / "run")
    assert run.wait(600).done
    assert json.loads(run[0].spec.read_text())["surroundings"]["variables"]["MINE"] == "a b"
    assert list(run.merge()) == [[str(tmp_path), "a b", None]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a SLURM of four small scripts on the PATH, whose queue lists two jobs until they are cancelled."""
    programs = tmp_path / "bin"
    programs.mkdir()
    listed = "echo '7_0|PENDING|Priority|'; echo '7_1|PENDING|Priority|'"
    texts = {
        "sbatch": "echo Submitted batch job 7",
        # asked about a job, it has forgotten it, as after a while
        "scontrol": "echo MaxArraySize = 1001; echo slurm_load_jobs error: Invalid job id specified >&2",
        "squeue": listed,
        "scancel": 'printf \'#!/bin/sh\\n\' > "$(dirname "$0")/squeue"',
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    options = {"cores": 1, "memory": "1GB", "queue": "x"}
    set_parallel({"env": "slurm", "n_workers": 3, "options": options, "detached": {"shards": 2}})
    return programs


def squares(tmp_path: Path) -> DetachedRun:
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    runner = Squares(Provider({"folder": str(tmp_path)}), **folders, async_mode=True, progress=False)
    run: DetachedRun = runner(range(4))
    return run


def test_a_refused_submission_leaves_shards_that_submit_takes(slurm: Path, tmp_path: Path) -> None:
    """When the scheduler's command fails its words are shown, the shards are `new`, and `submit` takes them."""
    sbatch = (slurm / "sbatch").read_text()
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    with pytest.raises(SubmissionError, match=r"sbatch.*exit code 1.*\n.*invalid partition"):
        squares(tmp_path)
    run = DetachedRun.open(tmp_path / "run")
    assert [shard.state for shard in run.status().shards] == [JobState.NEW] * 2
    (slurm / "sbatch").write_text(sbatch)
    assert "2 pending" in " ".join(espnet3("submit", run.path, cwd=tmp_path).stdout.split())
    assert [job.job_id for job in run] == ["7_0", "7_1"]
    assert run.status().shards[0].note == "PENDING: Priority"
    assert run.cancel().counts == {JobState.CANCELLED: 2}
    assert not calls(tmp_path)


def test_cancel_says_that_the_scheduler_answers_with_errors(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that cannot be read is an error with the scheduler's words and what to do; a later cancel ends all."""
    monkeypatch.setattr(job_arrays, "_REFUSED", 0.0)
    run = squares(tmp_path)
    queue = (slurm / "squeue").read_text()
    down = "slurm_load_jobs error: Unable to contact slurm controller"
    for name in ("squeue", "scancel"):
        os.rename(slurm / name, slurm / f"{name}.good")
        (slurm / name).write_text(f"#!/bin/sh\necho '{down}' >&2; exit 1\n")
        (slurm / name).chmod(0o700)
    with pytest.raises(ParallelError) as raised:
        run.cancel(grace=0.1)
    said = str(raised.value)
    assert f"scancel 7 ended with 1: {down}" in said and "error: squeue" in said
    assert "`espnet3-parallel cancel` again" in said and str(run.path / "detached/stop.json") in said
    for name in ("squeue", "scancel"):
        os.rename(slurm / f"{name}.good", slurm / name)
    assert (slurm / "squeue").read_text() == queue
    assert run.cancel().counts == {JobState.CANCELLED: 2}


def test_cancel_bears_a_scheduler_that_refuses_one_query(slurm: Path, tmp_path: Path) -> None:
    """A query that a busy scheduler refuses is asked again, and the cancellation goes on."""
    run = squares(tmp_path)
    (slurm / "scancel").write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\n'
        'printf \'#!/bin/sh\\nprintf "#!/bin/sh\\\\n" > "$0"; echo Socket timed out >&2; exit 1\\n\' > squeue\n'
    )
    assert run.cancel().counts == {JobState.CANCELLED: 2}


def test_memory_is_raised_by_the_factor() -> None:
    """A job whose shard was killed for want of memory asks for more of it in its header."""
    from espnet3.parallel.detached.layout import Plan

    options = {"cores": 1, "memory": "2GiB"}
    plan = Plan("", [0], "specs", "slurm", 1, options, {}, "")
    assert "--mem=2G" in make_job(plan).job_header and "--mem=3G" in make_job(plan, 1.5).job_header
    assert "--mem=8G" in job_of("slurm").job_header


def test_the_states_on_the_page_are_those_of_the_code() -> None:
    """docs/detached.md has a row for each state, with its sentence."""
    page = (ROOT / "docs/detached.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.partition("## States")[2], re.MULTILINE)
    assert rows == [(state.value, state.sentence) for state in JobState]
