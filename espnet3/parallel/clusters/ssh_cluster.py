"""`env: ssh`: a scheduler on the first host, workers on the others, each in an SSH session.

The options are SSHCluster's own. What differs: `n_workers` workers are spread over the hosts, a host
that cannot be reached does not end the others, a session that dies is opened again, and what
the remote side said before it failed is part of the message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shlex
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dask
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster

from espnet3.parallel.backends import PER_HOST, Backend, load_cluster_class
from espnet3.parallel.backends.machine import SshHost, ssh_hosts, unreachable, worker_hosts
from espnet3.parallel.clusters.options import own_scratch
from espnet3.parallel.clusters.security import PRELOAD, certificate_for, config_of
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import INHERITED, SPEC_MODULE, inherited_config
from espnet3.parallel.dask_compat.clusters import KeptCluster
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.jobs.commands import end_task
from espnet3.parallel.jobs.script import export_path
from espnet3.parallel.pilots.worker_cluster import WorkerCluster, listed, not_there

logger = logging.getLogger(__name__)

_TRIES = 3  # sessions in a row to one host that may fail
_GRACE = 5.0  # seconds a remote process has to end
_PAUSE = 1.0  # seconds before a host is tried again
_SHOWN = 12  # lines of a remote process that a message shows


class RemoteError(RuntimeError):
    """A process on another host did not start; the message holds the host and the output there."""


class RemoteProcess(ProcessInterface):
    """A Dask process in an SSH session of its own, as `spec` says."""

    def __init__(
        self, scheduler: str = "", *, host: SshHost, config: str, spec: Mapping[str, Any], name: Any = None
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.scheduler, self.name = scheduler, name
        self.host, self.config, self.spec = host, config, spec
        self.connection: Any = None
        self.process: Any = None

    async def open(self, announced: str, spec: Mapping[str, Any], *words: str) -> str:
        """Open a session and start in it what `SPEC_MODULE` makes of `spec`; return its line that has `announced`."""
        import asyncssh

        host, how, python = self.host.name, self.host.connect_options, str(self.host.python)
        try:
            self.connection = await asyncssh.connect(host, **how)
        except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
            raise RemoteError(f"{host}: {unreachable(error, how)}") from error
        command = shlex.join([python, "-m", SPEC_MODULE, *words, "--spec-file", "/dev/stdin"])
        self.process = await self.connection.create_process(f"exec sh -c {shlex.quote(_tied(command))}")
        # every account of the host reads the command lines of all others
        self.process.stdin.write(f"{self.config}\n{json.dumps(spec)}\n")
        tail: deque[str] = deque(maxlen=_SHOWN)
        while line := (await self.process.stderr.readline()).rstrip("\n"):
            tail.append(line)
            if announced in line:
                return str(line)
        said = "\n".join(f"    {each}" for each in tail) or "    (nothing)"
        await self.hang_up()
        raise RemoteError(f"{host}: {python} ended before Dask was up; it said:\n{said}")

    async def read_on(self) -> None:
        """Read what it says until it ends."""
        stderr = self.process.stderr
        try:
            while await stderr.readline():
                pass
        except Exception as error:  # asyncssh has no common base for the errors of a broken connection
            logger.info("the session to %s has ended: %r", self.host.name, error)

    async def hang_up(self) -> None:
        """End the process and its session."""
        if self.process is not None:
            self.process.stdin.write_eof()  # ends it, see `_tied`
            try:
                await asyncio.wait_for(self.process.wait_closed(), _GRACE)
            except asyncio.TimeoutError:
                self.process.kill()
        if self.connection is not None:
            self.connection.close()
            await self.connection.wait_closed()
        self.process = self.connection = None

    async def close(self) -> None:
        """End it for good."""
        if self.status != Status.closed:
            await self.hang_up()
        await super().close()


class RemoteScheduler(RemoteProcess):
    """The scheduler, on the first host."""

    async def start(self) -> None:
        """Start it; the address is taken from its announcement."""
        line = await self.open("Scheduler at:", self.spec)
        self.address = line.split("Scheduler at:")[1].strip()
        self._reader = asyncio.create_task(self.read_on())
        self.status = Status.running


class RemoteWorker(RemoteProcess):
    """One worker (and its nanny), opened again when it ends."""

    failure: str | None = None  # why it is given up
    trying = ""
    _again: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start connecting in the background, so that the cluster does not wait for a host that is down."""
        self.status = Status.running
        self._again = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        tries, turn = 0, 0
        while tries < _TRIES:
            turn += 1  # another name for each session, as the scheduler may still hold the last one's
            opts = {**self.spec["opts"], "name": f"{self.name}" if turn == 1 else f"{self.name}.{turn}"}
            try:
                await self.open("worker at", {"0": {**self.spec, "opts": opts}}, self.scheduler)
            except RemoteError as error:
                tries += 1
                self.trying = str(error)
                logger.warning("worker %s, try %d of %d: %s", self.name, tries, _TRIES, error)
                await asyncio.sleep(_PAUSE)
                continue
            tries, self.trying = 0, ""
            await self.read_on()
            logger.warning(
                "worker %s: its session to %s has ended; opening another", self.name, self.host.name
            )
            await self.hang_up()
        self.failure = self.trying

    async def close(self) -> None:
        """Stop trying, and end it."""
        if self._again is not None:
            await end_task(self._again)
        await super().close()


def _tied(command: str) -> str:
    # without a terminal a process outlives its session: it ends with its standard input, whose first two lines are
    # Dask's configuration and what the command reads
    path = "".join(f"{line}; " for line in export_path())
    return (
        f"cd {shlex.quote(os.getcwd())} 2>/dev/null || true; {path}exec 3<&0; "
        f"IFS= read -r {INHERITED} <&3; export {INHERITED}; IFS= read -r s <&3; {own_scratch()} || exit 1; "
        f"printf '%s\\n' \"$s\" | {command} & p=$!; (cat <&3; kill $p) >/dev/null 2>&1 & w=$!; "
        'wait $p; r=$?; kill $w 2>/dev/null; rm -rf "$DASK_TEMPORARY_DIRECTORY"; exit $r'
    )


class SSHCluster(KeptCluster, SpecCluster, WorkerCluster):
    """The cluster; knows what keeps its workers. One that went away comes back by itself."""

    def given_up(self) -> str | None:
        """Return why no worker will come, once every host is given up."""
        workers: list[Any] = list(self.workers.values())
        if workers and all(worker.failure for worker in workers):
            return "\n".join(str(worker.failure) for worker in workers)
        return None

    def missing(self) -> str:
        """Return what is wrong with each host whose worker has not come."""
        workers: list[Any] = list(self.workers.values())
        tried = [each for each in workers if each.trying]
        return listed(not_there(f"worker {each.name}", "is not up", detail=each.trying) for each in tried)


def start_ssh(row: Backend, config: ParallelConfig) -> SSHCluster:
    """Start the scheduler on the first host, and begin to start the workers."""
    load_cluster_class(row)  # raises if asyncssh is missing
    hosts = ssh_hosts(config.options)
    options = {name: value for name, value in config.options.items() if name not in ("hosts", *PER_HOST)}
    pages = {"dashboard_address": "127.0.0.1:0"}
    scheduler_options = {**pages, **(options.pop("scheduler_options", None) or {"port": 0})}
    worker_options = {**pages, "nthreads": 1, **(options.pop("worker_options", None) or {})}
    preloads = worker_options.get("preload_nanny") or dask.config.get("distributed.nanny.preload", [])
    worker_options["preload_nanny"] = [*([preloads] if isinstance(preloads, str) else preloads), PRELOAD]
    certificate = certificate_for(options, config.security, "these hosts")
    if certificate is not None:
        scheduler_options.setdefault("protocol", "tls")
    dask_config = inherited_config({} if certificate is None else config_of(options["security"]))

    def process(make: type, host: SshHost, wanted: str, opts: Mapping[str, Any]) -> dict[str, Any]:
        # a host that is off never answers; a session whose machine is gone stays silent: ask for a sign of life
        how = {"connect_timeout": config.start_timeout / 2, "keepalive_interval": 15, **host.connect_options}
        known = replace(host, connect_options=how, python=host.python or sys.executable)
        spec = {"cls": wanted, "opts": opts}
        return {"cls": make, "options": {"host": known, "config": dask_config, "spec": spec}}

    workers = {
        f"ssh-{n}": process(RemoteWorker, host, "distributed.Nanny", worker_options)
        for n, host in zip(range(config.n_workers), itertools.cycle(worker_hosts(hosts)), strict=False)
    }
    scheduler = process(RemoteScheduler, hosts[0], "distributed.Scheduler", scheduler_options)
    try:
        return SSHCluster(workers, scheduler, certificate=certificate, name="SSHCluster", **options)
    except RuntimeError as error:
        if isinstance(error.__cause__, RemoteError):
            raise NoWorkersError(
                f"the scheduler of the workers could not be started over SSH: {error.__cause__}"
            ) from error.__cause__  # Dask's own error only says that a cluster failed
        raise
