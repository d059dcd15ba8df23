"""What is said when jobs cannot start, on real SLURM."""

import json
import subprocess
import sys

import pytest

from espnet3.parallel import NoWorkersError, get_client, parallel_map
from tests.clusters.conftest import wait_for_no_worker
from tests.clusters.labs import SLURM, never_to_run
from tests.clusters.work import square
from tests.parallel.detached.work import espnet3
from tests.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.usefixtures("slurm")]


def refused(kind=NoWorkersError, n_workers=2, **options):
    """Run a call that cannot work; return the error."""
    block = SLURM.block(n_workers, **options)
    with pytest.raises(kind) as error, get_client(block):
        parallel_map(square, range(4))
    return error.value


def test_a_request_that_can_never_run_is_explained_by_an_error_and_by_doctor(tmp_path):
    """Over `start_timeout` both have SLURM's own reason."""
    block = {**SLURM.block(1, job_extra_directives=[never_to_run(SLURM)]), "start_timeout": 8}
    with (
        pytest.raises(NoWorkersError, match="PENDING.: DependencyNeverSatisfied") as error,
        get_client(block),
    ):
        parallel_map(square, range(4))
    assert "within start_timeout = 8 s" in str(error.value) and "scontrol show job" in str(error.value)
    SLURM.wait_for_empty_queue()
    (tmp_path / "conf.json").write_text(json.dumps({"parallel": block}))  # JSON is YAML
    done = espnet3("doctor", "conf.json", "--start", cwd=tmp_path, ok=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG  no item could be run" in done.stdout
    assert "DependencyNeverSatisfied" in done.stdout


def test_workers_end_with_a_cluster_that_closes_while_they_start():
    """SLURM tracks processes by their parents; none waits for its scheduler until a death-timeout of ten minutes."""
    with get_client(SLURM.block(2, death_timeout=600)):
        wait_until(lambda: {"RUNNING"} == set(states()), said=states)
    SLURM.wait_for_empty_queue()
    wait_for_no_worker()


def states():
    command = ["squeue", "-h", "-o", "%T"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_n_workers_counts_workers(caplog):
    """With `processes: 2` four workers are two jobs, and that is said."""
    with get_client(SLURM.block(4, cores=2, processes=2)) as client:
        client.wait_for_workers(4, timeout=600)
        assert len(SLURM.queue().splitlines()) == 2
        assert parallel_map(square, range(50)) == [x * x for x in range(50)]
    assert "n_workers = 4 with processes = 2: 2 jobs" in caplog.text


def test_logs_go_when_all_went_well_and_stay_when_not(tmp_path):
    """The folder made for the logs is removed after a good run, and kept after a bad one."""
    with get_client(SLURM.block(1)):
        assert parallel_map(square, [2]) == [4]
    assert list(tmp_path.iterdir()) == []
    refused(python="/no/such/python")
    assert [path.name.startswith("espnet3-slurm-") for path in tmp_path.iterdir()] == [True]


def test_doctor_finds_a_folder_that_the_nodes_do_not_see(tmp_path):
    """A folder over which the node has a disk of its own is named; the shared one is seen."""
    local, shared = tmp_path / "local", tmp_path / "shared"
    local.mkdir()
    shared.mkdir()
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nexec unshare --user --map-root-user --mount sh -c "
        f'\'mount -t tmpfs none {local} && exec {sys.executable} "$@"\' sh "$@"\n'
    )
    python.chmod(0o755)
    block = SLURM.block(1, python=str(python))
    (tmp_path / "conf.json").write_text(json.dumps({"parallel": block}))  # JSON is YAML
    words = ["conf.json", "--start", "--folder", str(local), "--folder", str(shared)]
    done = espnet3("doctor", *words, cwd=tmp_path, ok=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"ok  the worker sees {tmp_path}\n" in done.stdout
    assert f"ok  the worker sees {shared}\n" in done.stdout
    assert f"WRONG  the worker does not see {local}: the folder of that name there is another" in done.stdout
