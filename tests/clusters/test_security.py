"""TLS on real SLURM and SSH."""

import subprocess
import sys

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.labs import SLURM, SSH
from tests.clusters.work import square

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def labs(started):
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


def test_large_results_and_many_small_ones_over_tls():
    """What TLS decrypts ahead is read too: no chunk waits for ever."""
    with get_client({**SLURM.block(2), "security": "on"}):
        assert parallel_map(len, [b"x" * n for n in range(0, 3_000_000, 300_000)]) == list(
            range(0, 3_000_000, 300_000)
        )
        assert parallel_map(bytes, [100_000] * 40) == [bytes(100_000)] * 40
        assert parallel_map(square, range(20_000)) == [x * x for x in range(20_000)]
