"""What a cluster leaves open beside its listeners: folders, keys, command lines, and how many may knock."""

import datetime
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from espnet3.parallel import get_client
from espnet3.parallel.errors import ConfigError
from tests.habits import rows
from tests.parallel.clusters.ssh_server import ssh_server
from tests.parallel.clusters.stranger import NOBODY
from tests.parallel.detached.work import ROOT, held, hold, let_go, run_of
from tests.standins import standin

SECRET = "s3cr3t-of-a-gateway"
IDLE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
from espnet3.parallel import get_client, parallel_map

with get_client({"env": "local", "n_workers": 2}) as client:
    client.wait_for_workers(2)
    print(client.scheduler.address, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
    sys.stdin.readline()
    assert client.submit(abs, -1).result() == 1 and parallel_map(abs, range(20)) == list(range(20))
    open("/dev/null").close()
    print("served", flush=True)
    sys.stdin.readline()
"""
KILLED = """
import os, sys
from espnet3.parallel.clusters.security import certificate_for
folder = certificate_for({}, "on", "this machine")
print(folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as options:
        yield options


@contextmanager
def opened(env: str, connect: dict[str, Any], **more: Any) -> Iterator[Any]:
    """Open a worker of an env."""
    options: dict[str, dict[str, Any]] = {
        "local": {},
        "pbs": {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "1h", "nanny": True},
        "ssh": {
            "hosts": ["127.0.0.1", "127.0.0.2"],
            "connect_options": connect,
            "scheduler_options": {"host": "127.0.0.1", "port": 0},
            "worker_options": {"host": "127.0.0.1", "nthreads": 1, "resources": {SECRET: 1}},
        },
    }
    queue: AbstractContextManager[Any] = standin("pbs") if env == "pbs" else ExitStack()
    block = {"env": env, "n_workers": 1, "start_timeout": 600, "options": {**options[env], **more}}
    with queue, get_client(block) as client:
        client.wait_for_workers(1, timeout=600)
        yield client


@pytest.mark.accounts
@pytest.mark.parametrize("env", rows(["local", "pbs", "ssh"], ["local"]))
def test_dask_writes_to_no_folder_that_somebody_else_made(
    env: str, connect: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes `dask-scratch-space` first empties no file of the user's, and holds no worker's folder."""
    place, mine = tmp_path / "tmp", tmp_path / "mine"
    trap = place / "dask-scratch-space"
    trap.mkdir(parents=True)
    place.chmod(0o1777)
    mine.write_text("precious")
    for name in ("global.lock", "purge.lock"):
        (trap / name).symlink_to(mine)
    os.chown(trap, NOBODY, NOBODY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with opened(env, connect) as client:
        folders = client.run(lambda dask_worker: dask_worker.local_directory)
        scheduler = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
        for folder in map(Path, [*folders.values(), scheduler]):
            (private,) = [each for each in folder.parents if each.name.startswith("espnet3-dask-")]
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            assert private.stat().st_uid == os.geteuid()
    assert mine.read_text() == "precious"
    assert {path.name for path in trap.iterdir()} == {"global.lock", "purge.lock"}
    if env == "local":
        assert [path.name for path in place.iterdir() if path.name.startswith("espnet3-dask")] == []


def test_an_own_local_directory_holds_what_workers_write(tmp_path: Path) -> None:
    """The option says where; in it they have a folder of their own."""
    with opened("local", {}, local_directory=str(tmp_path / "here")) as client:
        found = client.run(lambda dask_worker: dask_worker.local_directory)
        assert all(Path(folder).is_relative_to(tmp_path / "here") for folder in found.values())


def test_no_command_line_over_ssh_holds_configuration_or_options(
    connect: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's configuration, and what the options say, reach hosts by standard input."""
    monkeypatch.chdir(tmp_path)
    with dask.config.set({"my.gateway": SECRET}), opened("ssh", connect) as client:
        lines = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
        assert any("dask_spec" in line for line in lines)
        assert not [line for line in lines if SECRET in line or "INHERIT_CONFIG=" in line]
        said = client.run(lambda: __import__("dask").config.get("my.gateway"))
        assert set(said.values()) == {SECRET}  # and do reach them


# --- keys ---


@contextmanager
def killed(folder: Path, home: Path) -> Iterator[Path]:
    """Have a driver make its keys in a folder and be killed; yield where they are."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        keys = Path(driver.stdout.readline().strip())
        assert keys.is_dir()
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        yield keys


def test_keys_of_a_killed_driver_go_with_the_next_run(tmp_path: Path) -> None:
    """They are valid for days, not for a year."""
    from cryptography import x509

    with killed(tmp_path, tmp_path) as first:
        cert = x509.load_pem_x509_certificate((first / "cert.pem").read_bytes())
        left = cert.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
        assert left < datetime.timedelta(days=15)
        with killed(tmp_path, tmp_path) as second:
            assert not first.exists() and second.exists()


def test_keys_are_in_no_folder_that_others_may_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a folder that others may write to they go to the user's home; a folder asked for is refused."""
    place, home = tmp_path / "project", tmp_path / "home"
    (place / "own").mkdir(parents=True)
    home.mkdir()
    place.chmod(0o777)
    with killed(place / "own", home) as keys:
        assert keys.is_relative_to(home) and stat.S_IMODE(keys.stat().st_mode) == 0o700
        assert not list((place / "own").iterdir())
    monkeypatch.chdir(tmp_path)
    refused = pytest.raises(
        ConfigError, match=r"project can be written to by everybody.*shared_temp_directory"
    )
    with refused, opened("pbs", {}, shared_temp_directory=str(place / "own")):
        pytest.fail("it was opened")
    place.chmod(0o1777)  # sticky: nobody exchanges another one's
    with killed(place / "own", home) as keys:
        assert keys.parent == place / "own"


def test_a_driver_knows_its_own_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever exchanges the files of its keys changes nothing about whom it lets in, and whom it speaks to."""
    from distributed import Client

    monkeypatch.chdir(tmp_path)
    with killed(tmp_path, tmp_path) as other, opened("pbs", {}) as client:
        (keys,) = [folder for folder in tmp_path.glob("espnet3-tls-*") if folder != other]
        for name in ("cert.pem", "key.pem"):
            assert not (other / name).exists()  # gone with this run
            (keys / name).write_text("a stranger's")
        with Client(client.scheduler.address, security=client.security) as again:
            assert again.submit(abs, -3).result() == 3


# --- specs ---


@pytest.mark.accounts
def test_jobs_read_the_specs_that_their_run_wrote(tmp_path: Path) -> None:
    """Whoever may write to the folder above exchanges the folder of `async_specs_dir`, and no job looks there."""
    tmp_path.chmod(0o777)
    hold(tmp_path, 0)
    run = run_of(tmp_path, n=6, workers=1, shards=3)
    held(tmp_path, 0)
    (link,) = (tmp_path / "specs").iterdir()
    shutil.move(tmp_path / "specs", tmp_path / "away")
    (tmp_path / "specs" / link.name).mkdir(parents=True)
    for shard in range(3):
        (tmp_path / "specs" / link.name / f"shard.{shard}.json").write_text("{}")
    let_go(tmp_path, 0)
    assert run.wait(600).done
    assert [result["square"] for result in run.merge()] == [0, 1, 4, 9, 16, 25]


@pytest.mark.accounts
def test_a_job_believes_no_spec_of_another_account(tmp_path: Path) -> None:
    """A whole run folder that was put in the place of the job's own is not run."""
    run = run_of(tmp_path, n=2, shards=1)
    assert run.wait(600).done
    spec = run[0].spec
    os.chown(spec, NOBODY, NOBODY)
    command = [sys.executable, "-m", "espnet3.parallel.worker", str(spec)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "it is not believed" in done.stdout + done.stderr


# --- connections ---


@pytest.mark.parametrize("hard", rows([256, 4096], [256]), ids=["few files", "enough files"])
def test_idle_connections_keep_no_driver_from_its_work(hard: int, tmp_path: Path) -> None:
    """More of them than the driver may have open: it goes on, logs next to nothing, and ends them after seconds."""
    command = [sys.executable, "-c", IDLE, str(hard)]
    with (
        open(tmp_path / "log", "wb") as log,
        ExitStack() as idle,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as driver,
    ):
        assert driver.stdin is not None and driver.stdout is not None
        address, soft = driver.stdout.readline().split()
        assert int(soft) == hard
        host, _, port = address.rpartition("/")[2].rpartition(":")
        sockets = [idle.enter_context(socket.socket()) for _ in range(hard // 4 * 5 if hard < 1000 else 1000)]
        for each in sockets:
            each.settimeout(None if each is sockets[0] else 0.5)
            try:
                each.connect((host, int(port)))
            except OSError:  # the queue of the listener is full, too
                break
        driver.stdin.write("go\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "served\n"
        sockets[0].settimeout(600)
        assert sockets[0].recv(1) == b""  # it never said a word
        driver.stdin.close()
    assert (tmp_path / "log").stat().st_size < 100_000, (tmp_path / "log").read_text()[:2000]
