"""Sessions end, hosts are away and logins are refused: SSH."""

import os
import signal

import psutil
import pytest

from espnet3.parallel import NoWorkersError, get_client, parallel_map
from tests.clusters.counted import Counted
from tests.clusters.labs import HOME, SSH
from tests.clusters.work import square

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def ssh(started):
    return started("ssh")


def sessions():
    """Return the processes of sshd that serve a session (not their monitors), oldest first."""
    master = int((HOME / "ssh" / "sshd.pid").read_text())
    serving = [
        p for p in psutil.Process(master).children(recursive=True) if "@notty" in " ".join(p.cmdline())
    ]
    return sorted(serving, key=lambda each: each.create_time())


def test_a_killed_ssh_session_is_opened_again(tmp_path):
    """A session that dies in the middle loses no result, and the host gets another one."""
    run = Counted(tmp_path, 160, 0.1)
    with get_client(SSH.block(2)) as client:
        client.wait_for_workers(2, timeout=600)
        victim = sessions()[-1]
        began = victim.create_time()
        results = run.meanwhile(lambda: os.kill(victim.pid, signal.SIGKILL), after=20, workers=3)
        assert sessions()[-1].create_time() > began
    run.check(results, killed=1)
    assert not psutil.wait_procs(sessions(), timeout=60)[1]


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
        client.wait_for_workers(2, timeout=600)
        assert parallel_map(square, range(100)) == [x * x for x in range(100)]
        assert "127.0.0.9: no connection to port 12222" in str(client.cluster.missing())


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
        ({"client_keys": [str(HOME / "ssh" / "stranger")]}, "Permission denied"),
        ({"known_hosts": str(HOME / "ssh" / "stranger.pub")}, "host key"),
        ({"username": "nobody"}, "Permission denied for user nobody"),
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
