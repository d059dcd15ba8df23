"""Job arrays as text: what is submitted, and what a queue's list means."""

import os
import subprocess
from pathlib import Path
from typing import Any

import dask
import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.backends.scheduler import SubmitBy
from espnet3.parallel.detached.launch.job_arrays import (
    Array,
    body,
    description,
    directives,
    make_job,
    script,
)
from espnet3.parallel.detached.layout import Plan, parts
from espnet3.parallel.jobs import script as job_script
from espnet3.parallel.jobs.script import set_walltime

GOLDEN = Path(__file__).parent / "golden"
SCHEDULERS = [name for name, row in BACKENDS.items() if row.scheduler is not None]
CWD, TASKS, CODE = "/data/submitter's", Path("/data/it's $(here)/tasks.0.json"), "/code/of mine"
OPTIONS: dict[str, Any] = {
    "shebang": "#!/bin/sh",
    "job_script_prologue": ["module load python"],
    "python": "'/opt/py thon/bin/python'",
    "cores": 4,
    "memory": "8GB",
    "walltime": "04:00:00",
    "queue": "batch",
    "job_name": "espnet3-run",
    "lsf_units": "mb",
    "disk": "1GB",
    "memory_per_core_property_name": "not_applicable",
}
OWN = {"lsf_units": "lsf", "disk": "htcondor", "memory_per_core_property_name": "oar"}
NOT = {"htcondor": ("walltime", "queue")}


def plan_of(name: str) -> Plan:
    """Return a plan for a scheduler."""
    options = {k: v for k, v in OPTIONS.items() if OWN.get(k, name) == name and k not in NOT.get(name, ())}
    if name == "lsf":
        options["walltime"] = "04:00"
    return Plan("", [0], "specs", name, 3, options, {})


def job_of(name: str) -> Any:
    """Return dask-jobqueue's job of a scheduler."""
    return make_job(plan_of(name))


def text_of(name: str, n: int) -> str:
    """Return what is submitted to a scheduler for n shards, three at a time."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None
    array = Array(plan_of(name), job_of(name), n, 3, CWD, TASKS, requeue=True)
    if scheduler.submit_by is SubmitBy.ARGUMENTS:
        words = "\n".join(directives(array))
        return f"{words}\n\n{script(array)}"
    if scheduler.submit_by is SubmitBy.DESCRIPTION:
        return description(array, "/data/it's/job.0.sh")
    return script(array)


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_is_submitted_is_what_the_golden_file_says(
    name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of an array, and of one element, is byte for byte the recorded one.

    `GOLDEN=write pytest tests/parallel/detached/test_scripts.py` records them anew.
    """
    file = GOLDEN / f"{name}.{n}.txt"
    monkeypatch.setattr(job_script, "import_path", lambda: CODE)
    text = text_of(name, n)
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_a_script_quotes_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that runs a job's script enters the folder and starts the interpreter with these very words."""
    folder = tmp_path / "it's $(touch injected) `x`; «ü»"
    folder.mkdir()
    python = folder / "py thon"
    python.write_text('#!/bin/sh\npwd; printf "%s\\n" "$@"; echo "$PYTHONPATH"\n')
    python.chmod(0o700)
    monkeypatch.setattr(job_script, "import_path", lambda: str(folder / "code"))
    plan = plan_of("slurm")
    plan.options.update(job_script_prologue=[], python=str(python))
    text = body(Array(plan, make_job(plan), 2, 1, "/", folder / "t", requeue=False), "#!/bin/sh")
    environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "7", "PYTHONPATH": "before"}
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, env=environment, check=True)
    words = ["-m", "espnet3.parallel.worker", "--tasks", str(folder / "t"), "7"]
    assert done.stdout.splitlines() == [str(folder), *words, f"{folder / 'code'}:before"]
    assert not (tmp_path / "injected").exists()


def test_arrays_are_split_at_the_sites_limit() -> None:
    """A thousand shards with a limit of 400 become three arrays, which share the workers; as do amounts of memory."""
    cut = parts(range(1000), {}, 16, 400)
    assert [(len(shards), limit) for _, shards, limit in cut] == [(400, 6), (400, 6), (200, 4)]
    assert [shard for _, shards, _ in cut for shard in shards] == list(range(1000))
    assert [limit for *_, limit in parts(range(10), {}, 1, 4)] == [1, 1, 1]
    assert parts([3, 5, 8, 9], {"5": 1.5}, 4, 400) == [(1.0, [3, 8, 9], 3), (1.5, [5], 1)]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_jobs_know_the_walltime_that_the_site_sets(name: str) -> None:
    """Without a walltime among the options the site's is what ends a job, so that is what it stops in time for."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None
    options: dict[str, Any] = {"cores": 1, "memory": "1GB"}
    with dask.config.set({f"jobqueue.{name}.walltime": "00:20" if scheduler.minutes_last else "00:20:00"}):
        seconds = set_walltime(BACKENDS[name], options)
    assert seconds == (1200 if scheduler.has_walltime else None)
