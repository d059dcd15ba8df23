"""Runs under supervisors: one of a session of its own on this machine, or one on each SSH host.

    python -m espnet3.parallel.detached.launch.supervisors RUN [K/M]

A supervisor detaches from its parent before it prints "ready", holds a lease, keeps `n_workers` jobs running, restarts
those that die, and ends with the last. Each job leads a session of its own: killing the supervisor kills none of them.
Supervisors of several hosts share the shards by leases.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path

from espnet3.parallel.backends import Kind, machine, row
from espnet3.parallel.backends.backend import require_package
from espnet3.parallel.backends.machine import chosen_gpus
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached import states
from espnet3.parallel.detached.job.stopping import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, log_to, say
from espnet3.parallel.detached.job_spec import job_environment
from espnet3.parallel.detached.layout import DONE, ENDED, LOG, SUPERVISOR, Layout, Plan
from espnet3.parallel.detached.states import GRACE, JobState, Queue
from espnet3.parallel.errors import NoWorkersError, ParallelError
from espnet3.parallel.jobs.script import export_path, in_sh, python_words
from espnet3.parallel.ledger.files import make_folder, open_to_write, write_json
from espnet3.parallel.ledger.lease import Lease, disk_now, holder_lives
from espnet3.parallel.local.forking import fresh_signals, kill_group
from espnet3.parallel.records import ProcessEnd

READY = "ready"
SUPERVISING = "espnet3.parallel.detached.launch.supervisors"  # this module
_WORKER = "espnet3.parallel.worker"
_SECONDS = 60.0  # a host that has not answered by then is given up
_DEATHS = 5  # jobs of a shard that may die in a row without a single outcome
_TURN = 0.2  # seconds between two looks at jobs, and for stop.json
_PATIENCE = 2 * GRACE  # seconds that the supervisor before may take to end, once none of its jobs is left
_PAUSE = 2.0  # seconds without another job after one that ended with items left


def check(config: ParallelConfig) -> None:
    """Raise where this machine has fewer GPUs than jobs at a time, or asyncssh is missing."""
    if row(config.env).kind is Kind.GPU:
        chosen_gpus(config.options, config.n_workers)
    elif row(config.env).kind is Kind.SSH:
        require_package(row(config.env))


def start(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float]) -> None:
    """Start a supervisor that runs these shards, or one on each host; return when it holds its lease."""
    layout.note_jobs({str(shard): f"{plan.env}.{shard}" for shard in shards}, raised)
    if row(plan.env).kind is Kind.SSH:
        _start_on_hosts(layout, plan)
        return
    cwd = layout.template().surroundings.cwd
    done = subprocess.run(
        [*python_words(row(plan.env), plan.options, cwd), "-m", SUPERVISING, str(layout.run)],
        stdin=subprocess.DEVNULL,
        capture_output=True,  # until a daemon, no child of this process, has closed both streams
        errors="replace",
        cwd=layout.folder,
        env=job_environment(),
        start_new_session=True,
        check=False,
    )
    if (line := done.stdout.strip()) != READY:
        said = "\n".join(done.stderr.splitlines()[-15:])
        raise ParallelError(f"the supervisor of {layout.run} did not start: {line or said}")


def query(layout: Layout, jobs: dict[str, str]) -> Queue:
    """Return the state of jobs without a sign of life: pending while a supervisor may start them, else lost."""
    now = disk_now(layout.folder)
    supervised = any(holder_lives(folder, now) for folder in layout.folder.glob(f"{SUPERVISOR}*"))
    return {int(shard): (JobState.PENDING if supervised else JobState.LOST, "") for shard in jobs}


def _start_on_hosts(layout: Layout, plan: Plan) -> None:
    import asyncio  # a supervisor, which this module is too, needs none of it

    require_package(row(plan.env))
    used = machine.worker_hosts(machine.ssh_hosts(plan.options))[: plan.n_workers]
    lines = [_line(layout, host, f"{number}/{len(used)}") for number, host in enumerate(used)]

    async def start_all() -> list[str]:
        return await asyncio.gather(*map(_start_one, used, lines))

    answers = asyncio.run(start_all())
    failed = [f"{host.name}: {said}" for host, said in zip(used, answers, strict=True) if said != READY]
    if len(failed) == len(used):
        raise NoWorkersError("no supervisor could be started:\n" + "\n".join(failed))
    for line in failed:
        print(f"the run goes on without a host: {line}", flush=True)


def _line(layout: Layout, host: machine.SshHost, part: str) -> str:
    python = host.python or sys.executable
    if os.sep in python:  # else PATH resolves it
        python = os.path.join(layout.template().surroundings.cwd, python)
    command = shlex.join([python, "-m", SUPERVISING, str(layout.run), part])
    lines = [f"cd {shlex.quote(str(layout.folder))} || exit 1", *export_path(), f"exec {command} < /dev/null"]
    return in_sh(lines)  # the login shell there may be any


async def _start_one(host: machine.SshHost, line: str) -> str:
    import asyncio

    import asyncssh

    options = {"connect_timeout": _SECONDS, **host.connect_options}
    try:
        async with asyncssh.connect(host.name, **options) as connection:
            done = await asyncio.wait_for(connection.run(line, check=False), _SECONDS)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        return f"cannot be reached: {machine.unreachable(error, options)}"
    said = str(done.stdout or "").strip()
    if said.splitlines()[-1:] == [READY]:
        return READY
    return f"its supervisor did not start: {said} {str(done.stderr or '').strip()}".strip()


class Supervisor:
    """Runs the shards of the last submission."""

    def __init__(self, layout: Layout, plan: Plan, shards: list[int], folder: Path) -> None:
        self.layout = layout
        self.plan = plan
        # the file that lists the shards for jobs, which go on from one to the next
        _, self.tasks = layout.write_tasks(folder, shards)
        self.places = {shard: at for at, shard in enumerate(shards)}  # in that list
        # shared out among the jobs that run at a time; none: they see what this process sees
        self.gpus = chosen_gpus(plan.options, plan.n_workers) if row(plan.env).kind is Kind.GPU else []
        self.todo = deque(shards)
        self.stopping = self._killing = False
        # by slot, the shard that its job began with and the job's process
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._deaths = Counter[tuple[int, int, int]]()  # of jobs, by shard and its outcomes then
        self._again = 0.0  # when the next job may start, by `time.monotonic`

    def run(self) -> None:
        """Run until every shard is done, or the run is told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        kill = 0.0  # when the jobs that do not end are killed
        while self._running or (self.todo and not self.stopping):
            if not self._is_over():
                if time.monotonic() >= self._again:
                    self._fill()
            elif not kill:
                kill = time.monotonic() + float((self.layout.stopped() or {}).get("grace", GRACE))
                self._signal(signal.SIGTERM)
            elif time.monotonic() > kill:
                self._killing = True
                self._signal(signal.SIGKILL)
            time.sleep(_TURN)
            for slot, (shard, process) in list(self._running.items()):
                if process.poll() is not None:
                    del self._running[slot]
                    self._ended(shard, process)
        self._leave()

    def _told_to_end(self, *_: object) -> None:
        self.stopping = True
        self._signal(signal.SIGTERM)  # at once: an item may end before the next look

    def _is_over(self) -> bool:
        # told so by a job that has ended, or on another host; or the folder has been moved away or deleted
        if self.layout.stopped() is not None or not self.layout.is_there():
            self.stopping = True
        return self.stopping

    def _signal(self, number: signal.Signals) -> None:
        for _, process in list(self._running.values()):
            process.send_signal(number)  # the job alone: the item in hand needs what it has started

    def _fill(self) -> None:
        for slot in range(self.plan.n_workers):
            while self.todo and slot not in self._running and not self._is_over():
                shard = self.todo.popleft()
                folder = self.layout.shard(shard)
                # else a living job may have it, of this host or another one
                if not (folder / DONE).exists() and not holder_lives(folder, disk_now(self.layout.folder)):
                    self._running[slot] = shard, self._start(shard, slot)

    def _start(self, shard: int, slot: int) -> subprocess.Popen[bytes]:
        folder = self.layout.shard(shard)
        make_folder(folder)
        with open(open_to_write(folder / LOG), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", _WORKER, "--tasks", str(self.tasks), str(self.places[shard])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**job_environment(), **machine.gpu_env(self.gpus, slot)},
                start_new_session=True,
            )

    def _ended(self, shard: int, process: subprocess.Popen[bytes]) -> None:
        status = process.returncode
        kill_group(process.pid)  # the processes that the job left behind
        job = states.job_name(process.pid)
        left = (other for other in self.places if not (self.layout.shard(other) / DONE).exists())
        taken = (other for other in left if states.read_mark(self.layout.shard(other)).get("job") == job)
        shard = next(taken, shard)  # it may have gone on to another one
        folder = self.layout.shard(shard)
        say(f"shard {shard} ended with {status}")
        if self._killing and status == -signal.SIGKILL:  # by this process, whatever item it was in
            states.excuse_dead(folder)
            self._note_stop(shard, f"killed {GRACE:g} s after it was asked to end, in the middle of an item")
        at_work = states.note_end(folder, job, ProcessEnd.from_returncode(status))
        self._settle(shard, status, at_work)

    def _settle(self, shard: int, status: int, at_work: bool) -> None:
        if self.stopping or (status in (EXIT_DONE, EXIT_FAILED) and not at_work):
            return
        if status == EXIT_UNFINISHED and not at_work:  # a signal from outside, or another worker has it
            self._again = time.monotonic() + _PAUSE
            self.todo.append(shard)
            return
        folder = self.layout.shard(shard)
        mark = states.read_mark(folder)
        place = shard, mark.get("ok", 0), mark.get("failed", 0)
        self._deaths[place] += 1
        if self._deaths[place] < _DEATHS:
            self.todo.appendleft(shard)
            return
        end = ProcessEnd.from_returncode(status)
        where = f" in {mark['hook']}" if mark.get("hook") and not mark.get("stopping") else ""
        why = f"its process {end}{where} {_DEATHS} times in a row without an outcome; see its log"
        write_json(folder / ENDED, {"state": JobState.FAILED.value, "why": why})

    def _leave(self) -> None:
        now = disk_now(self.layout.folder)
        for shard in self.todo if self.stopping else ():
            if holder_lives(self.layout.shard(shard), now):
                continue  # another host's
            begun = states.read_mark(self.layout.shard(shard)).get("job")
            self._note_stop(shard, state=JobState.UNFINISHED if begun else JobState.NOT_STARTED)

    def _note_stop(self, shard: int, how: str = "", state: JobState = JobState.UNFINISHED) -> None:
        folder = self.layout.shard(shard)
        if (folder / DONE).exists() or (folder / ENDED).exists() or not self.layout.is_there():
            return
        order = self.layout.stopped() or {"why": "its supervisor was told to end"}
        if order.get("state") == JobState.CANCELLED:
            state = JobState.CANCELLED
        why = "; ".join(part for part in (order.get("why", ""), how) if part)
        make_folder(folder)
        write_json(folder / ENDED, {"state": state.value, "why": why}, durable=False)


def main(run: str, part: str = "0/1") -> int:
    """Detach from the parent, take the lease, report that, and supervise; `part` is which host of how many this is."""
    fresh_signals()
    number, n_hosts = map(int, part.split("/"))
    layout = Layout(Path(run), own=True)
    if os.fork():
        os._exit(0)  # the process that started it is no longer its parent, and has nothing to wait for
    os.setsid()
    folder = layout.supervisor if n_hosts == 1 else layout.folder / f"{SUPERVISOR}.{number}"
    make_folder(folder)
    lease = Lease(folder)
    try:
        states.acquire(lease, "supervisor", _PATIENCE)
        plan = layout.plan()
        each, more = divmod(plan.n_workers, n_hosts)
        plan = replace(plan, n_workers=each + (number < more))  # its share of the jobs at a time
        shards = layout.jobs()["last"]
        begins_at = len(shards) * number // n_hosts
        shards = shards[begins_at:] + shards[:begins_at]
        supervisor = Supervisor(layout, plan, shards, folder)
        print(READY, flush=True)
        log_to(folder)
        say(f"supervising {len(shards)} shards, {plan.n_workers} at a time")
        begin = time.monotonic()
        supervisor.run()
        say(f"ended after {time.monotonic() - begin:.1f} s")
    except ParallelError as error:
        print(error, flush=True)
        return 1
    finally:
        lease.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
