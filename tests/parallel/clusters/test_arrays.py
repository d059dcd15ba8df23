"""Jobs of workers that start together are one job array, whose elements are watched, replaced and cancelled alone."""

import itertools
import logging
import os
import shlex
import subprocess
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from espnet3.parallel import get_client, parallel_for, parallel_map
from espnet3.parallel.backends import row
from espnet3.parallel.clusters import client as clients
from espnet3.parallel.clusters.arrays import array_script
from tests.habits import rows
from tests.sites import SUBMIT, habit
from tests.standins import standin
from tests.standins.place import block
from tests.waiting import wait_until

STANDINS = ["pbs", "lsf", "moab", "htcondor"]
INDEX = {
    "slurm": "SLURM_ARRAY_TASK_ID",
    "pbs": "PBS_ARRAY_INDEX",
    "sge": "SGE_TASK_ID",
    "lsf": "LSB_JOBINDEX",
    "moab": "MOAB_JOBARRAYINDEX",
    "oar": "OAR_ARRAY_INDEX",
}


def slow(item: int) -> int:
    time.sleep(0.1)
    return item


def count_submissions(env: str, folder: Path, monkeypatch: pytest.MonkeyPatch, first: str = "") -> Path:
    """Have the scheduler's submit command count its calls in the file returned, and run shell code `first`."""
    calls = folder / "calls"
    calls.touch()
    habit(SUBMIT[env], f'echo call >> "{calls}"\n{first}\nexec "$OWN" "$@"', folder, monkeypatch)
    return calls


@pytest.mark.parametrize("env", INDEX)
def test_each_element_finds_its_workers_name(env: str) -> None:
    """The script of an array gives the worker of each element the name that its job has, whatever is in it."""
    scheduler = row(env).scheduler
    script = (
        f"#!/bin/sh\n{scheduler.mark} -J mine\n{scheduler.mark} -q a\n"
        'printf %s --name "my \\$(date) cluster-41" --nthreads 1\n'
    )
    job = SimpleNamespace(name="my $(date) cluster-41", job_name="mine", job_script=lambda: script)
    made = array_script(scheduler, job, 3)
    for at in range(3):
        surroundings = {**os.environ, INDEX[env]: str(scheduler.first + at)}
        done = subprocess.run(
            ["sh", "-c", made], capture_output=True, text=True, check=True, env=surroundings
        )
        assert done.stdout == f"--namemy $(date) cluster-{41 + at}--nthreads1"


@pytest.mark.parametrize("env", rows(STANDINS, ("lsf",)))
def test_three_workers_are_one_submission_and_each_is_replaced_alone(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs come with one command and have their own names; another takes the place of one that is cancelled."""
    with standin(env) as queue:
        calls = count_submissions(env, tmp_path, monkeypatch)
        with get_client(block(env, 3)) as client:
            client.wait_for_workers(3, timeout=600)
            names = {each["name"] for each in client.scheduler_info(n_workers=-1)["workers"].values()}
            assert len(names) == 3 and calls.read_text().split() == ["call"]
            _, job, _ = client.cluster.workers.values()
            subprocess.run([*shlex.split(job.cancel_command), job.job_id], check=True)
            with closing(parallel_for(slow, itertools.count())) as results:
                # without work none takes its place
                wait_until(lambda: next(results) >= 0 and len(queue.jobs()) == 4)
            client.wait_for_workers(3, timeout=600)
            assert len(queue.unfinished()) == 3
        wait_until(lambda: not queue.unfinished())
        assert len(queue.jobs()) == 4


def test_where_arrays_are_refused_each_job_is_submitted_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A site that allows no arrays is said once, in the scheduler's own words, and the workers come all the same."""
    with standin("pbs") as queue:
        refuse = 'grep -q "^#PBS -J" "$1" && { echo "qsub: job arrays are not allowed here" >&2; exit 1; }'
        calls = count_submissions("pbs", tmp_path, monkeypatch, refuse)
        with caplog.at_level(logging.WARNING), get_client(block("pbs", 2)) as client:
            client.wait_for_workers(2, timeout=600)
            assert len(calls.read_text().split()) == 3
        wait_until(lambda: not queue.unfinished())
    said = [each.message for each in caplog.records if "job array was refused" in each.message]
    assert len(said) == 1
    assert "job arrays are not allowed here" in said[0]


def test_the_number_of_workers_follows_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without work there is no job; with work there are as many as allowed; then none, until there is work again."""
    monkeypatch.setattr(clients, "_IDLE", 1.0)
    with standin("pbs") as queue:
        with get_client({**block("pbs", 1), "adapt": {"minimum": 0, "maximum": 3}}):
            assert queue.jobs() == []
            with closing(parallel_for(slow, itertools.count())) as results:
                wait_until(lambda: next(results) >= 0 and len(queue.unfinished()) == 3)
            wait_until(lambda: not queue.unfinished(), every=0.1)
            assert parallel_map(abs, range(-10, 0)) == list(range(10, 0, -1))
        wait_until(lambda: not queue.unfinished())
