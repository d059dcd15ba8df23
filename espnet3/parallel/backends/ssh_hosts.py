"""The hosts of `env: ssh`: one reading of `hosts`, `connect_options` and `remote_python` for all modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine that is reached over SSH."""

    name: str  # its name or address
    connect_options: Mapping[str, Any]  # arguments of `asyncssh.connect` for it
    python: str | None  # the interpreter there; None: the path of this process's interpreter


def ssh_hosts(options: Mapping[str, Any]) -> tuple[SshHost, ...]:
    """Return all hosts of a block's options, in their order; the first one runs the scheduler of a cluster."""
    names = options["hosts"]
    connect = _for_each(options.get("connect_options") or {}, len(names))
    python = _for_each(options.get("remote_python"), len(names))
    return tuple(SshHost(*each) for each in zip(names, map(dict, connect), python, strict=True))


def worker_hosts(hosts: tuple[SshHost, ...]) -> tuple[SshHost, ...]:
    """Return the hosts that get workers.

    The first of several runs the scheduler of a cluster. A detached run has no scheduler of that kind and leaves the
    host out all the same, so that one configuration means the same machines in every mode.
    """
    return hosts[1:] or hosts


def unreachable(error: BaseException, options: Mapping[str, Any]) -> str:
    """Return why a host could not be reached, and what to look at."""
    import asyncio

    import asyncssh

    port = options.get("port", 22)
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            f"its host key is not trusted ({error}); add it to known_hosts, or name the file in "
            "options.connect_options.known_hosts"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        user = options.get("username", "this user")
        return f"login as {user} was refused ({error}); see connect_options.username and client_keys"
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return f"no answer on port {port} within {options.get('connect_timeout'):g} s; is the host up?"
    return f"no connection to port {port}: {error}; see options.hosts and connect_options.port"


def _for_each(value: Any, count: int) -> list[Any]:
    given = value if isinstance(value, list) else [value]
    return given * count if len(given) == 1 else given
