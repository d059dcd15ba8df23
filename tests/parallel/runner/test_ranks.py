"""Two ranks of one program: rank 0 runs the items, and rank 1 has its results, its failure, or its end."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

import espnet3
from espnet3.parallel.runner.ranks import rank_of
from tests.habits import rows
from tests.parallel.runner import ranked

REPOSITORY = Path(espnet3.__file__).resolve().parents[1]
VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS")
SQUARES = [x * x for x in range(10)]
GUARD = 600  # seconds after which a rank counts as hanging
# How the launchers name rank 0 and rank 1
TORCHRUN = [{"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2"} for n in (0, 1)]
# after the training; WORLD_SIZE is gone
LIGHTNING = [{"LOCAL_RANK": str(n), "NODE_RANK": "0"} for n in (0, 1)]
SRUN = [{"SLURM_PROCID": str(n), "SLURM_NTASKS": "2"} for n in (0, 1)]


@pytest.fixture
def start(tmp_path):
    """A function that starts a rank; what is left of them ends with the test."""
    started = []

    def rank(variables, kind="Squares", **options):
        options = {"output_dir": str(tmp_path / "run"), **options}
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        process = subprocess.Popen(
            [sys.executable, ranked.__file__, kind, str(tmp_path), json.dumps(options)],
            env={**environment, "PYTHONPATH": str(REPOSITORY), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield rank
    for process in started:
        process.kill()
        process.communicate()


def end(process, code=0):
    """Wait for a rank's end; return what it printed, as JSON, and its standard error."""
    out, err = process.communicate(timeout=GUARD)
    assert process.returncode == code, err
    return json.loads(out) if out else None, err


def log(folder):
    """Return what the items and the merges have noted, sorted."""
    return sorted((folder / "log").read_text().split())


LAUNCHERS = {"torchrun": TORCHRUN, "lightning": LIGHTNING, "srun": SRUN}
BY_DEFAULT = (("torchrun", "Writes", 1),)


@pytest.mark.parametrize(
    ("launcher", "kind", "first"), rows([*product(LAUNCHERS, ("Squares", "Writes"), (0, 1))], BY_DEFAULT)
)
def test_two_ranks_infer_once(launcher, kind, first, start, tmp_path):
    """Each item runs once, and both ranks have the results, whichever comes first; each merges, one after the other."""
    ranks = LAUNCHERS[launcher]
    processes = {first: start(ranks[first], kind)}
    if first == 1:
        read_until(processes[1], "waits for the results of rank 0")
    processes[1 - first] = start(ranks[1 - first], kind)
    for process in processes.values():
        assert end(process)[0] == SQUARES
    merges = ["merged"] * 2 if kind == "Writes" else []
    assert log(tmp_path) == sorted([*map(str, range(10)), *merges])


def read_until(process, text):
    """Read a rank's standard error up to a text."""
    read = ""
    while text not in read:
        line = process.stderr.readline()
        assert line, read
        read += line
    return read


def test_a_finished_run_is_taken_at_once(start, tmp_path):
    """Where rank 0 ran before there were ranks, as a program that is started again for each of them, nobody waits."""
    assert end(start({}, "Writes"))[0] == SQUARES
    assert end(start(LIGHTNING[1], "Writes"))[0] == SQUARES
    assert log(tmp_path).count("3") == 1


def test_rank_1_fails_with_rank_0(start, tmp_path):
    """What rank 0 failed of is in the error of rank 1; the next start of the program waits for its own rank 0."""
    for bad in (3, None):
        waiting = start(TORCHRUN[1], bad=bad, resume="force")
        read_until(waiting, "waits for the results of rank 0")
        computing = start(TORCHRUN[0], bad=bad, resume="force")
        if bad is None:
            assert end(computing)[0] == end(waiting)[0] == SQUARES
        else:
            assert "no square of 3" in end(computing, 1)[1]
            error = end(waiting, 1)[1]
            assert "which is rank 1 (RANK=1): its run failed with" in error
            assert "item 3 failed" in error


def test_rank_1_ends_with_the_process_that_started_it(tmp_path):
    """Where rank 0 has started rank 1, as Lightning does, and is killed, rank 1 ends and says so."""
    script = tmp_path / "parent.py"
    options = json.dumps({"output_dir": str(tmp_path / "run")})
    script.write_text(
        "import os, signal, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, {ranked.__file__!r}, 'Squares', {str(tmp_path)!r}, {options!r}],\n"
        "    env={**os.environ, 'LOCAL_RANK': '1'})\n"
        "signal.pause()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )
    read_until(parent, "waits for the results of rank 0")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with parent.stderr:
        # up to the end of rank 1
        assert "the process that has started this one is gone" in parent.stderr.read()


def test_every_rank_runs_its_own(start, tmp_path):
    """With every_rank=True rank 1 runs its items itself, and so it does without an output_dir."""
    assert end(start(TORCHRUN[1], every_rank=True))[0] == SQUARES
    assert end(start(TORCHRUN[1], output_dir=None))[0] == SQUARES
    assert log(tmp_path).count("3") == 2


def test_a_changed_config_in_one_rank_is_named(start, tmp_path):
    """Ranks that were given different configs end with the difference, and neither waits for the other."""
    waiting = start(TORCHRUN[1], bad=77)
    read_until(waiting, "waits for the results of rank 0")
    assert end(start(TORCHRUN[0]))[0] == SQUARES
    assert "config.bad: null -> 77" in end(waiting, 1)[1]


def test_jobs_are_submitted_once(start, tmp_path):
    """Of a detached run rank 0 submits the jobs, and rank 1 gets the same run."""
    options = {"async_mode": True, "async_specs_dir": str(tmp_path / "specs"), "n_workers": 1}
    waiting = start(TORCHRUN[1], **options)
    read_until(waiting, "waits for the results of rank 0")
    found = end(start(TORCHRUN[0], **options))[0]
    assert end(waiting)[0] == found
    assert found[0] == str(tmp_path / "run")
    assert log(tmp_path) == sorted(map(str, range(10)))


def test_one_process_knows_no_ranks():
    """Without the variables there is no rank; a batch script is no rank either, though its job has several tasks."""
    assert rank_of({}) is None
    assert rank_of({"SLURM_PROCID": "1", "SLURM_NTASKS": "1"}) is None
    assert rank_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).number == 0
    assert rank_of({"RANK": "", "LOCAL_RANK": "x"}) is None
    assert rank_of({"RANK": "1", "WORLD_SIZE": "1"}) is rank_of({"RANK": "5", "WORLD_SIZE": "2"}) is None


def test_the_variables_that_say_most_come_first():
    """RANK counts before LOCAL_RANK, which is 0 on each node; of Lightning's variables rank 0 has 0 in all."""
    assert rank_of({"RANK": "8", "LOCAL_RANK": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}).number == 8
    assert rank_of({"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}).number == 0
    assert rank_of({"LOCAL_RANK": "0", "NODE_RANK": "1"}).number == 1
    assert rank_of({"LOCAL_RANK": "3", "NODE_RANK": "0"}).told_by == "LOCAL_RANK=3"


def test_an_initialised_process_group_says_the_rank(tmp_path):
    """Where torch.distributed is initialised it says the rank, whatever the variables say."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        found = rank_of({"RANK": "5"})
    finally:
        distributed.destroy_process_group()
    assert (found.number, found.told_by) == (0, "torch.distributed")
