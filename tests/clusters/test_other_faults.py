"""Jobs and sessions end in the middle of a run: Grid Engine, OAR, HTCondor and SSH."""

import os
import signal
import subprocess

import psutil
import pytest

from espnet3.parallel import NoWorkersError, SubmissionError, get_client, parallel_map
from tests.clusters.counted import Counted
from tests.clusters.labs import HOME, HTCONDOR, LABS, OAR, SGE, SSH
from tests.clusters.work import square

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def labs(started):
    """Start all of them once."""
    return {name: started(name) for name in ("sge", "oar", "htcondor", "ssh")}


@pytest.fixture(autouse=True)
def _nothing_stays():
    """After each test the queues are empty."""
    yield
    for lab in LABS.values():
        if lab.name != "slurm":
            lab.wait_for_empty_queue()


def job_ids(client):
    """Return the ids of the jobs of a client's cluster."""
    return [job.job_id for job in client.cluster.workers.values()]


def until_two(client):
    """Wait for both workers."""
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize(
    ("lab", "command"),
    [(SGE, ["qdel"]), (OAR, ["oardel"]), (HTCONDOR, ["condor_vacate_job", "-fast"])],
    ids=["qdel", "oardel", "condor_vacate"],
)
def test_a_job_is_taken_away(lab, command, tmp_path):
    """All results come, none twice, when one of two jobs is deleted or vacated in the middle."""
    run = Counted(tmp_path, 160, 0.1)
    with get_client(lab.block(2)) as client:
        until_two(client)
        victim = job_ids(client)[0]
        results = run.meanwhile(
            lambda: subprocess.run([*command, victim], check=True, capture_output=True), after=20
        )
    run.check(results)


def sessions():
    """Return the processes of sshd that serve a session."""
    master = int((HOME / "ssh" / "sshd.pid").read_text())
    return [each for each in psutil.Process(master).children() if each.name() == "sshd"]


def test_a_killed_ssh_session_is_opened_again(tmp_path):
    """A session that dies in the middle loses no result, and the host gets another one."""
    run = Counted(tmp_path, 160, 0.1)
    with get_client(SSH.block(2)) as client:
        until_two(client)
        victim = sessions()[-1]
        began = victim.create_time()
        results = run.meanwhile(lambda: os.kill(victim.pid, signal.SIGKILL), after=20)
        assert any(each.create_time() > began for each in sessions())
    run.check(results)
    until_gone = psutil.wait_procs(sessions(), timeout=10)
    assert not until_gone[1]


def ssh_block(n_workers=3, hosts=None, start_timeout=20, **connect):
    """Return a block for SSH with other connect options."""
    block = SSH.block(n_workers)
    block["start_timeout"] = start_timeout
    options = block["options"]
    options["hosts"] = hosts or options["hosts"]
    options["connect_options"] = {**options["connect_options"], **connect}
    return block


def test_one_host_of_four_cannot_be_reached():
    """The other hosts do the work; what is wrong with the one is said."""
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.9", "127.0.0.4"]
    with get_client(ssh_block(3, hosts)) as client:
        client.wait_for_workers(2, timeout=60)
        assert parallel_map(square, range(100)) == [x * x for x in range(100)]
        assert "127.0.0.9: no connection to port 12222" in client.cluster.waiting()


def test_no_worker_host_can_be_reached():
    """Where every host is given up, the run ends at once and says what is wrong with each."""
    with (
        pytest.raises(NoWorkersError) as error,
        get_client(ssh_block(2, ["127.0.0.1", "127.0.0.8", "127.0.0.9"])),
    ):
        parallel_map(square, range(4))
    assert "127.0.0.8: no connection to port 12222" in str(error.value)
    assert "127.0.0.9: no connection to port 12222" in str(error.value)


@pytest.mark.parametrize(
    ("connect", "said"),
    [
        ({"port": 12223}, "no connection to port 12223"),
        ({"client_keys": [str(HOME / "ssh" / "stranger")]}, "was refused"),
        ({"known_hosts": str(HOME / "ssh" / "stranger.pub")}, "host key"),
        ({"username": "nobody"}, "login as nobody was refused"),
    ],
    ids=["port", "key", "host key", "user"],
)
def test_a_login_that_is_refused_names_the_option(connect, said):
    """A wrong port, key, host key or user is said at once, with the option to look at."""
    with pytest.raises(NoWorkersError) as error, get_client(ssh_block(**connect)):
        parallel_map(square, range(4))
    assert said in str(error.value)
    assert "could not be started over SSH: 127.0.0.1" in str(error.value)


def test_python_that_is_missing_on_a_host_is_said():
    """What the remote shell said is part of the message."""
    block = ssh_block()
    block["options"]["remote_python"] = "/no/such/python"
    with pytest.raises(NoWorkersError, match="/no/such/python"), get_client(block):
        parallel_map(square, range(4))


@pytest.mark.parametrize(
    ("lab", "options", "said"),
    [
        (SGE, {"queue": "nosuch.q"}, "nosuch.q"),
        (SGE, {"job_extra_directives": ["-no-such-flag"]}, "no-such-flag"),
        (OAR, {"queue": "nosuch"}, "nosuch"),
        (HTCONDOR, {"job_extra_directives": {"request_gpus": "$(("}}, "ERROR"),
    ],
    ids=["sge queue", "sge directive", "oar queue", "condor directive"],
)
def test_a_refused_submission_is_shown(lab, options, said):
    """What the scheduler says about a job it refuses is raised at once."""
    with pytest.raises(SubmissionError) as error, get_client(lab.block(2, **options)):
        parallel_map(square, range(4))
    assert said in str(error.value)


@pytest.mark.parametrize("lab", [SGE, OAR, HTCONDOR], ids=["sge", "oar", "htcondor"])
def test_jobs_that_die_at_their_start_show_their_log(lab):
    """The log's end is in the message on every scheduler."""
    with (
        pytest.raises(NoWorkersError) as error,
        get_client(lab.block(2, job_script_prologue=["echo the module is gone >&2", "exit 4"])),
    ):
        parallel_map(square, range(4))
    assert "jobs in a row ended at their start" in str(error.value)
    assert "the module is gone" in str(error.value)
