"""TLS, and a size that follows the work, on real SLURM and SSH."""

import os
import subprocess
import sys

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.labs import SLURM, SSH, STATE
from tests.clusters.second_account import ask
from tests.clusters.work import square
from tests.waiting import wait_until

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def labs(started):
    """Start both once."""
    return [started("slurm"), started("ssh")]


def stranger(address, how, patience=4):
    """Connect in a process of its own; return its exit code and what it printed."""
    code = (
        "from distributed import Client, Security\n"
        f"address = {address!r}\n"
        f"with Client({how}, timeout='{patience}s'): print('let in')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def own(folder):
    """Return the code of a Security that uses the run's files."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    return f"Security(tls_ca_file={cert!r}, tls_client_cert={cert!r}, tls_client_key={key!r}, require_encryption=True)"


@pytest.mark.parametrize("lab", [SLURM, SSH], ids=["slurm", "ssh"])
def test_a_run_with_a_certificate_takes_nobody_else(lab, tmp_path):
    """Work goes on over TLS; a client without the certificate, or with another one, is refused."""
    with get_client({**lab.block(2), "security": "on"}) as client:
        assert parallel_map(square, range(200)) == [x * x for x in range(200)]
        address = client.scheduler.address
        assert address.startswith("tls://")
        assert all(worker.startswith("tls://") for worker in client.scheduler_info()["workers"])
        (folder,) = tmp_path.glob("espnet3-tls-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        for how in ("address, security=Security.temporary()", "address", "address.replace('tls', 'tcp')"):
            code, said = stranger(address, how)
            assert code != 0 and "let in" not in said, said
        assert stranger(address, f"address, security={own(folder)}", patience=120) == (0, "let in\n")
    assert not folder.exists()


CONNECT = """
import asyncio, distributed, os
from distributed import Security
from distributed.core import rpc

async def main():
    print("as", os.getuid())
    for address in {addresses!r}:
        security = {security}
        try:
            async with rpc(address, connection_args=security.get_connection_args("client")) as there:
                await asyncio.wait_for(there.identity(), {patience})
        except Exception as error:
            print("refused", type(error).__name__)
        else:
            print("let in")

asyncio.run(main())
"""
PAGES = """
import os, ssl, urllib.request
print("as", os.getuid())
context = ssl._create_unverified_context()
if {files!r}:
    context.load_cert_chain(*{files!r})
for page in {pages!r}:
    try:
        with urllib.request.urlopen(page, timeout={patience}, context=context) as answer:
            print("let in", answer.status)
    except OSError as error:
        print("refused", type(error).__name__)
"""
READ = """
import os
print("as", os.getuid())
for file in {files!r}:
    try:
        open(file)
    except OSError as error:
        print(type(error).__name__)
"""
THEIRS = "Security.temporary()"


def other(code):
    """Have code run by the second account; return what it printed, line by line."""
    _, said, wrong = ask(STATE / "other" / "door", code)
    uid, *lines = said.splitlines()
    assert int(uid.removeprefix("as ")) not in (0, os.getuid()), (said, wrong)
    return lines


def ours(code):
    """Run code as this user; return what it printed, line by line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[1:]


def pages_of(client):
    """Return an HTTP page of the scheduler and one of each worker, over TLS and without."""
    info = client.scheduler_info()
    ports = [("127.0.0.1", info["services"]["dashboard"])]
    ports += [("127.0.0.1", w["services"]["dashboard"]) for w in info["workers"].values()]
    return [f"{scheme}://{host}:{port}/health" for scheme in ("https", "http") for host, port in ports]


@pytest.mark.parametrize("lab", [SLURM, SSH], ids=["slurm", "ssh"])
def test_a_second_account_is_refused_by_scheduler_workers_and_pages(lab, tmp_path):
    """Another user gets in nowhere: their own certificate is refused, and they cannot read the run's."""
    tmp_path.chmod(0o755)
    with get_client(lab.block(2)) as client:  # by default
        client.wait_for_workers(2, timeout=120)
        addresses = [client.scheduler.address, *client.scheduler_info()["workers"]]
        assert len(addresses) == 3
        (folder,) = tmp_path.glob("espnet3-tls-*")
        pair = [str(folder / "cert.pem"), str(folder / "key.pem")]

        assert ours(CONNECT.format(addresses=addresses, security=own(folder), patience=120)) == ["let in"] * 3
        for those in (addresses, [each.replace("tls", "tcp") for each in addresses]):
            said = other(CONNECT.format(addresses=those, security=THEIRS, patience=8))
            assert len(said) == 3 and all(line.startswith("refused ") for line in said), said
        read = READ.format(files=pair)
        assert other(read) == ["PermissionError"] * 2

        pages = pages_of(client)
        assert ours(PAGES.format(pages=pages[:3], files=pair, patience=120)) == ["let in 200"] * 3
        said = other(PAGES.format(pages=pages, files=[], patience=8))
        assert len(said) == 6 and all(line.startswith("refused ") for line in said), said


def test_another_user_cannot_read_the_certificate(tmp_path):
    """The folder is closed to everybody but its owner, whatever the umask is."""
    before = os.umask(0)
    try:
        with get_client({**SLURM.block(1), "security": "on"}):
            (folder,) = tmp_path.glob("espnet3-tls-*")
            modes = [path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())]
        assert not any(modes)
    finally:
        os.umask(before)


def test_large_results_and_many_small_ones_over_tls():
    """What TLS decrypts ahead is read too: no chunk waits for ever."""
    with get_client({**SLURM.block(2), "security": "on"}):
        assert parallel_map(len, [b"x" * n for n in range(0, 3_000_000, 300_000)]) == list(
            range(0, 3_000_000, 300_000)
        )
        assert parallel_map(bytes, [100_000] * 40) == [bytes(100_000)] * 40
        assert parallel_map(square, range(20_000)) == [x * x for x in range(20_000)]


def queued():
    """Return how many jobs there are."""
    done = subprocess.run(["squeue", "-h", "-t", "PD,R"], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def test_adapt_follows_the_work():
    """Without work there is no job; with work there are some, never more than the maximum; then none again."""
    block = {**SLURM.block(1), "adapt": {"minimum": 0, "maximum": 3}}
    with get_client(block):
        assert queued() == 0
        assert parallel_map(square, range(100)) == [x * x for x in range(100)]
        assert 1 <= queued() <= 3
        wait_until(lambda: queued() == 0, seconds=90, every=0.2)
        assert parallel_map(square, range(10)) == [x * x for x in range(10)]
    SLURM.wait_for_empty_queue()
