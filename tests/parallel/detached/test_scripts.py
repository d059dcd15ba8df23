"""Job arrays as text: what is submitted, and what a queue's list means."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.detached.launch.scheduler import make_job, read_queue
from espnet3.parallel.detached.launch.scripts import (
    JobArray,
    ScriptFacts,
    body,
    job_arrays,
    condor_description,
    directives,
    script,
)
from espnet3.parallel.detached.layout import Plan
from espnet3.parallel.detached.states import JobState

GOLDEN = Path(__file__).parent / "golden"
SCHEDULERS = [name for name, row in BACKENDS.items() if row.array is not None]
SURFACE = ScriptFacts(
    name="espnet3-run",
    shebang="#!/bin/sh",
    prologue=("module load python",),
    folder="/data/it's $(here)",
    python="/opt/py thon/bin/python",
    import_path="/code/of mine",
    tasks="/data/it's $(here)/tasks.0.json",
    requeue=True,
)
OPTIONS: dict[str, Any] = {
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
SGE_LIST = """\
job-ID  prior   name       user   state submit/start at     queue                slots ja-task-ID
------------------------------------------------------------------------------------------------
      5 0.55500 espnet3-ru root   r     11/21/2026 21:00:00 all.q@localhost          1 1
      5 0.55500 espnet3-ru root   qw    11/21/2026 21:00:00                          1 2
"""
NOT = {"htcondor": ("walltime", "queue")}


def job_of(name: str) -> Any:
    """Return dask-jobqueue's job of a scheduler."""
    options = {k: v for k, v in OPTIONS.items() if OWN.get(k, name) == name and k not in NOT.get(name, ())}
    if name == "lsf":
        options["walltime"] = "04:00"
    return make_job(Plan("", [0], "specs", [], name, 3, options, {}, ""))


def text_of(name: str, n: int) -> str:
    """Return what is submitted to a scheduler for n shards, three at a time."""
    array, job, array = BACKENDS[name].array, job_of(name), JobArray(0, tuple(range(n)), 3)
    assert array is not None
    if array.as_arguments:
        words = "\n".join(directives(array, array, job.job_header, SURFACE))
        return f"{words}\n\n{script(array, array, job.job_header, SURFACE)}"
    if array.mark:
        return script(array, array, job.job_header, SURFACE)
    return condor_description(array, array, job.job_header_dict, SURFACE, "/data/it's/job.0.sh")


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_is_submitted_is_what_the_golden_file_says(name: str, n: int) -> None:
    """The script of an array, and of one element, is byte for byte the recorded one.

    `GOLDEN=write pytest tests/parallel/detached/test_scripts.py` records them anew.
    """
    file = GOLDEN / f"{name}.{n}.txt"
    text = text_of(name, n)
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_a_script_quotes_every_path(tmp_path: Path) -> None:
    """A shell that runs a job's script enters the folder and starts the interpreter with these very words."""
    folder = tmp_path / "it's $(touch injected) `x`; «ü»"
    folder.mkdir()
    python = folder / "py thon"
    python.write_text('#!/bin/sh\npwd; printf "%s\\n" "$@"; echo "$PYTHONPATH"\n')
    python.chmod(0o700)
    array = BACKENDS["slurm"].array
    assert array is not None
    facts = ScriptFacts(
        "n", "#!/bin/sh", (), str(folder), str(python), str(folder / "code"), str(folder / "t"), False
    )
    text = body(array, JobArray(0, (0, 1), 1), facts)
    environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "7", "PYTHONPATH": "before"}
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, env=environment, check=True)
    words = ["-m", "espnet3.parallel.worker", "--tasks", str(folder / "t"), "7"]
    assert done.stdout.splitlines() == [str(folder), *words, f"{folder / 'code'}:before"]
    assert not (tmp_path / "injected").exists()


def test_arrays_are_split_at_the_sites_limit() -> None:
    """A thousand shards with a limit of 400 become three arrays, which share the workers."""
    cut = job_arrays(range(1000), 16, 400)
    assert [len(array.shards) for array in cut] == [400, 400, 200]
    assert [array.limit for array in cut] == [6, 5, 5]
    assert [shard for array in cut for shard in array.shards] == list(range(1000))
    assert [array.limit for array in job_arrays(range(10), 1, 4)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        (
            "slurm",
            "7_0|RUNNING|None\n7_1|PENDING|JobArrayTaskLimit\n7_2|TIMEOUT|TimeLimit\n9|RUNNING|None\n7_3|NODE_FAIL|\n",
            {
                "7_0": (JobState.RUNNING, "RUNNING"),
                "7_1": (JobState.PENDING, "PENDING: JobArrayTaskLimit"),
                "7_2": (JobState.TIMEOUT, "TIMEOUT: TimeLimit"),
                "7_3": (JobState.NODE_FAIL, "NODE_FAIL"),
            },
        ),
        (
            "sge",
            SGE_LIST,
            {"5.1": (JobState.RUNNING, "r"), "5.2": (JobState.PENDING, "qw")},
        ),
        (
            "pbs",
            "1[0].host  root batch run 100 1 4 8gb 04:00 R 00:01\n1[1].host  root batch run -- 1 4 8gb 04:00 Q --\n",
            {"1[0]": (JobState.RUNNING, "R"), "1[1]": (JobState.PENDING, "Q")},
        ),
        (
            "lsf",
            "12|1|RUN\n12|2|PEND\n12|3|EXIT\n",
            {
                "12[1]": (JobState.RUNNING, "RUN"),
                "12[2]": (JobState.PENDING, "PEND"),
                "12[3]": (JobState.LOST, "EXIT"),
            },
        ),
        (
            "htcondor",
            "3.0 2 undefined\n3.1 5 no disk\n",
            {"3.0": (JobState.RUNNING, "2"), "3.1": (JobState.PENDING, "5: no disk")},
        ),
    ],
)
def test_a_queues_list_is_read(name: str, said: str, expected: dict[str, Any]) -> None:
    """Each listed element has a state and the scheduler's own words; other lines are left out."""
    array = BACKENDS[name].array
    assert array is not None
    assert read_queue(array, said) == expected


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_sentence(state: JobState) -> None:
    """A state says what it means in words."""
    assert len(state.sentence.split()) > 4
