"""The hosts of `env: ssh`: one reading of `hosts`, `connect_options` and `remote_python` for all modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

PER_HOST = ("connect_options", "remote_python")


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine that is reached over SSH."""

    name: str  # its name or address
    connect_options: Mapping[str, Any]  # arguments of `asyncssh.connect` for it
    python: str | None  # the interpreter there; None: the path of this process's interpreter


def ssh_hosts(options: Mapping[str, Any]) -> tuple[SshHost, ...]:
    """Return all hosts of a block's options, in their order; the first one runs the scheduler of a cluster."""
    problems = [
        f"options.{name} = {shown(options[name], name)}: {reason}"
        for name in ("hosts", *PER_HOST)
        if name in options and (reason := refused_ssh_option(options, name))
    ]
    if problems or not options.get("hosts"):
        raise ConfigError("; ".join(problems) or "options.hosts is missing")
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


def refused_ssh_option(options: Mapping[Any, Any], name: str) -> str:
    """Return the mistake in the value of an option, and the fix; "" for a right one, and for other options."""
    hosts, value = options.get("hosts"), options[name]
    if name == "hosts":
        if isinstance(value, list) and value and all(isinstance(each, str) and each for each in value):
            return ""
        return "must be a list of host names, such as [node1, node2]; the first runs the scheduler"
    if name not in PER_HOST or value is None:
        return ""
    kind, one = (Mapping, "a mapping") if name == "connect_options" else (str, "the path of a Python")
    given = value if isinstance(value, list) else [value]
    if not all(isinstance(each, kind) for each in given):
        return f"must be {one}, or a list with one for each host"
    count = len(hosts) if isinstance(hosts, list) else len(given)
    if isinstance(value, list) and len(value) not in (1, count):
        return (
            f"the list has {len(value)} entries for {count} hosts: write one for each host, in the order of hosts, "
            "or a single one for all"
        )
    return ""


def _for_each(value: Any, count: int) -> list[Any]:
    given = value if isinstance(value, list) else [value]
    return given * count if len(given) == 1 else given
