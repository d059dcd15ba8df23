"""Jobs are taken away in the middle of a run, are refused, and die at their start, on each real scheduler."""

import subprocess

import pytest

from espnet3.parallel import NoWorkersError, SubmissionError, get_client, parallel_map
from tests.clusters.counted import Counted
from tests.clusters.labs import HTCONDOR, OAR, SGE, SLURM
from tests.clusters.work import square

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def labs(started):
    return {name: started(name) for name in ("slurm", "sge", "oar", "htcondor")}


@pytest.mark.parametrize(
    ("lab", "command"),
    [(SLURM, ["scancel"]), (SGE, ["qdel"]), (OAR, ["oardel"]), (HTCONDOR, ["condor_vacate_job", "-fast"])],
    ids=["scancel", "qdel", "oardel", "condor_vacate"],
)
def test_a_job_is_taken_away(lab, command, tmp_path):
    """All results come, none twice, when one of two jobs is deleted or vacated in the middle."""
    run = Counted(tmp_path, 160, 0.1)
    with get_client(lab.block(2)) as client:
        client.wait_for_workers(2, timeout=600)
        victim = next(iter(client.cluster.workers.values())).job_id
        results = run.meanwhile(
            lambda: subprocess.run([*command, victim], check=True, capture_output=True), after=20
        )
    run.check(results, killed=1)


@pytest.mark.parametrize(
    ("lab", "options", "said"),
    [
        (SLURM, {"queue": "nosuch"}, "invalid partition specified: nosuch"),
        (SLURM, {"job_extra_directives": ["--no-such-key=1"]}, "unrecognized option '--no-such-key=1'"),
        (SLURM, {"queue": "lab"}, "Invalid account"),
        (SGE, {"queue": "nosuch.q"}, "nosuch.q"),
        (SGE, {"job_extra_directives": ["-no-such-flag"]}, "no-such-flag"),
        (OAR, {"queue": "nosuch"}, "nosuch"),
        (HTCONDOR, {"job_extra_directives": {"request_gpus": "$(("}}, "ERROR"),
    ],
)
def test_a_refused_submission_is_shown(lab, options, said):
    """What the scheduler says about a job it refuses is raised at once, with the exit code of its command."""
    with pytest.raises(SubmissionError) as error, get_client(lab.block(2, **options)):
        parallel_map(square, range(4))
    assert said in str(error.value) and error.value.exit_code


@pytest.mark.parametrize("lab", [SLURM, SGE, OAR, HTCONDOR], ids=["slurm", "sge", "oar", "htcondor"])
def test_jobs_that_die_at_their_start_show_their_log(lab):
    """The log's end is in the message on every scheduler."""
    with (
        pytest.raises(NoWorkersError) as error,
        get_client(lab.block(2, job_script_prologue=["echo the module is gone >&2", "exit 4"])),
    ):
        parallel_map(square, range(4))
    assert "jobs in a row ended at their start" in str(error.value)
    assert "the module is gone" in str(error.value)
