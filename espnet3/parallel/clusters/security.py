"""A certificate for one run: only the run's own processes connect to each other, on one machine too.

A machine is shared more often than not, a login node always, and every account of it reaches a port on loopback. The
certificate signs itself and serves scheduler, workers and client alike: a reader of its key belongs to the run.
For workers that other machines start, certificate and key are files of mode 0600 in a folder of mode 0700, removed when
the cluster closes; for workers of this process they stay in memory.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
from distributed import Security

from espnet3.parallel.backends.backend import require
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import LedgerError
from espnet3.parallel.ledger.files import read_json, write_json, write_whole, writers
from espnet3.parallel.ledger.lease import is_alive, this_process

logger = logging.getLogger(__name__)

_CLOCKS = datetime.timedelta(days=30)  # by which the clock of a node may be behind
_VALID = datetime.timedelta(days=14)
_KEYS = "espnet3-tls-"  # begins the name of a folder of keys
_DRIVER = "driver.json"  # beside them: whose they are
_SERVERS = ("scheduler", "worker")
_ROLES = (*_SERVERS, "client")
# options by which a cluster of threads listens nevertheless
_LISTEN = ("host", "interface", "protocol", "scheduler_port")
# options by which the user chooses how processes speak: UCX knows no TLS
_OWN = ("protocol", "security", "enable_tcp_over_ucx", "enable_infiniband", "enable_nvlink")
PRELOAD = "espnet3.parallel.clusters.preload"  # the module that the processes of a run preload
SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"  # names a folder for its files to Dask in a job


def make_pair() -> tuple[str, str]:
    """Make a certificate that signs itself, and its key on a curve: in a millisecond, where RSA takes 0.2 s."""
    what = "workers are reached over TLS (or set security: off where no other account reaches this machine)"
    what += ", and that needs cryptography"
    require("cryptography", "dask", what)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "espnet3 run")])
    now = datetime.datetime.now(datetime.timezone.utc)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return cert.public_bytes(serialization.Encoding.PEM).decode(), secret.decode()


def local_security(config: ParallelConfig) -> dict[str, Any]:
    """Return the options of workers of this machine with what they lack."""
    options = dict(config.options)
    threads = options.get("processes", True) is False and not any(options.get(name) for name in _LISTEN)
    # else scheduler and workers are in this process, and do not listen
    if not threads and not is_encrypted(options) and _is_left_to_us(options, config.security, "this machine"):
        options["security"] = _security(*make_pair())  # workers get it from this process
    return options


def is_encrypted(options: Mapping[str, Any]) -> bool:
    """Return whether options of a cluster, or the Dask configuration, ask for TLS with the user's own certificate."""
    given = options.get("security") or Security()
    return given is True or bool(given.require_encryption)


def _is_left_to_us(options: Mapping[str, Any], security: str, where: str) -> bool:
    chosen = any(options.get(name) for name in _OWN)
    if (chosen or security == "off") and not is_encrypted(options):
        logger.warning(
            "security is off: accounts that reach %s, every other account there included, can run code as you, "
            "read what workers hold, and open the dashboard",
            where,
        )
    return not chosen and security != "off"


def certificate_for(options: dict[str, Any], security: str, where: str, parent: str = "") -> str | None:
    """Add a certificate of the run to the options of a cluster, unless security is off or the user gave one.

    Returns:
        The new folder that it is in, to be removed at last; those of drivers that were killed are removed beside it.
    """
    if not _is_left_to_us(options, security, where):
        return None
    cert_text, key_text = make_pair()
    place = _place_of_keys(parent)
    try:
        _remove_leftovers(place)
        folder = tempfile.mkdtemp(prefix=_KEYS, dir=place)  # mode 0700
    except OSError as error:
        raise ConfigError(
            f"the run's certificate cannot be written to {place}: {error.strerror}; start in a folder that "
            "you may write to and that the nodes see, or name one as options.shared_temp_directory"
        ) from error
    write_json(Path(folder) / _DRIVER, this_process())
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    write_whole(cert, cert_text.encode())
    write_whole(key, key_text.encode())

    class OfRun(Security):
        # this process knows its own pair and never reads the files, which workers are told of
        def get_tls_config_for_role(self, role: str) -> dict[str, Any]:
            of_worker = {"ca_file": cert, "cert": cert, "key": key} if role == "worker" else {}
            return {**super().get_tls_config_for_role(role), **of_worker}

    options["security"] = _security(cert_text, key_text, OfRun)
    return folder


def config_of(security: Any) -> dict[str, Any]:
    """Return Dask configuration by which processes of other machines have the certificate, for their pages too."""
    files = security.get_tls_config_for_role("worker")
    pair = {"cert": files["cert"], "key": files["key"]}
    comm = {
        "require-encryption": True,
        "default-scheme": "tls",
        "tls": {"ca-file": files["ca_file"], **dict.fromkeys(_ROLES, pair)},
    }
    guarded = {
        role: {"preload": [*dask.config.get(f"distributed.{role}.preload", []), PRELOAD]} for role in _SERVERS
    }
    return {"distributed": {"comm": comm, **guarded}}


def _security(cert: str, key: str, make: Any = Security) -> Any:
    roles = {f"tls_{role}_{part}": text for role in _ROLES for part, text in (("cert", cert), ("key", key))}
    return make(tls_ca_file=cert, require_encryption=True, **roles)


def _place_of_keys(parent: str) -> str:
    wanted = os.path.abspath(parent or os.getcwd())
    where = open_above(wanted)
    if not where:
        return wanted
    home = os.path.join(os.path.expanduser("~"), ".cache", "espnet3")
    if parent or open_above(os.path.dirname(home)):
        raise ConfigError(
            f"{where}, so that the run's key cannot be in {wanted}: its folder could be exchanged for another one. "
            "Name one as options.shared_temp_directory that the nodes see, where only you may write, there and above"
        )
    os.makedirs(home, mode=0o700, exist_ok=True)
    return home


def open_above(path: str) -> str:
    """Return the folder, `path` or one above, in which others may exchange files, and why; empty: none (as for sshd).

    In a sticky folder, as that of temporary files is, no account exchanges another one's.
    """
    real = Path(path).resolve()
    for folder in (real, *real.parents):
        with contextlib.suppress(FileNotFoundError):  # made later, by this user
            status = folder.stat()
            why = writers(status)
            if why and not (status.st_mode & stat.S_ISVTX and status.st_uid in (os.geteuid(), 0)):
                return f"{folder} {why}"
    return ""


def _remove_leftovers(place: str) -> None:
    for folder in Path(place).glob(f"{_KEYS}*"):
        status = folder.lstat()
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            continue
        try:
            lives = is_alive(read_json(folder / _DRIVER))
        except (OSError, LedgerError):
            lives = None  # its driver is just writing it, or an earlier version did not
        if lives is False or (lives is None and time.time() - status.st_mtime > _VALID.total_seconds()):
            shutil.rmtree(folder, ignore_errors=True)
