"""A certificate for one run: traffic beyond this machine is encrypted, and only the run's own processes connect.

The certificate signs itself and serves scheduler, workers and client alike: whoever can read its key
file belongs to the run. The files are 0600 in a folder of mode 0700, which jobs of the same user can
read; they are removed when the cluster closes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends.signatures import installed
from espnet3.parallel.errors import ConfigError, MissingPackageError


@dataclass(frozen=True, slots=True)
class RunCertificate:
    """The certificate of one run.

    Attributes:
        folder: Where its files are.
        security: The `distributed.Security` that uses them.
        config: The same as Dask configuration, for processes that inherit one.
    """

    folder: str
    security: Any
    config: Mapping[str, Any]

    def remove(self) -> None:
        """Remove the files; open connections stay."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_certificate(parent: str) -> RunCertificate:
    """Make a certificate in a new folder.

    Args:
        parent: A folder that the other machines see too.

    Raises:
        ConfigError: The folder cannot be written to.
        MissingPackageError: cryptography is not installed.
    """
    if not installed("cryptography"):
        raise MissingPackageError(
            "workers on other machines are reached over TLS, for which cryptography is not installed. Please "
            "install it: pip install cryptography; or set security: off where the network is private",
            name="cryptography",
        )
    import dask
    from distributed import Security

    temporary = Security.temporary()
    try:
        folder = tempfile.mkdtemp(prefix="espnet3-tls-", dir=parent)  # mode 0700
    except OSError as error:
        raise ConfigError(
            f"the run's certificate cannot be written to {parent}: {error.strerror}; start in a folder that "
            "you may write to and that the nodes see, or name one as options.shared_temp_directory"
        ) from error
    cert = _write(folder, "cert.pem", temporary.tls_client_cert)
    key = _write(folder, "key.pem", temporary.tls_client_key)
    roles = {f"tls_{role}_{part}": path for role in _ROLES for part, path in (("cert", cert), ("key", key))}
    pair = {"cert": cert, "key": key}
    comm = {
        "require-encryption": True,
        "default-scheme": "tls",
        "tls": {"ca-file": cert, **dict.fromkeys(_ROLES, pair)},
    }
    guarded = {
        role: {"preload": [*dask.config.get(f"distributed.{role}.preload", []), GUARD]} for role in _SERVERS
    }
    return RunCertificate(
        folder,
        Security(tls_ca_file=cert, require_encryption=True, **roles),
        {"distributed": {"comm": comm, **guarded}},
    )


_SERVERS = ("scheduler", "worker")
_ROLES = (*_SERVERS, "client")
GUARD = "espnet3.parallel.clusters.http_guard"
"""What schedulers and workers preload, so that their pages too are for holders of the certificate."""


def _write(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def all_loopback(addresses: Iterable[str]) -> bool:
    """Whether all of these are loopback addresses or names."""
    return all(each.startswith("127.") or each in ("localhost", "::1") for each in addresses)
