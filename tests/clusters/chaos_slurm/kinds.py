"""The table of disturbances of a detached run on SLURM; a row and a function add one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.clusters.chaos_slurm import queue
from tests.clusters.chaos_slurm.program import workers
from tests.parallel.detached.work import ROOT

if TYPE_CHECKING:
    from tests.clusters.chaos_slurm.rounds import Round

VERBS = (("status", "--json"), ("retry",), ("cancel", "--grace", "1"), ("merge",), ("logs",), ("submit",))
_LATE = 2.0  # seconds by which a host with a cache sees files late, at most


@dataclass(frozen=True)
class Kind:
    name: str
    # returns what it did, for the story; nothing where there was nothing to do it to
    do: Callable[[Round], str]
    lose: str = "none"  # how many workers may lose the item they are at: all of them, one, or none


# --- jobs, from outside the run ---


def _living(r: Round, *states: str) -> str:
    return r.draw.choice(
        sorted(e for e, (state, _) in queue.elements(r.name).items() if state in states) or [""]
    )


def _cancel_element(r: Round) -> str:
    element = _living(r, "RUNNING", "PENDING")
    return f"scancel {element}: {queue.said('scancel', element)}" if element else ""


def _requeue(r: Round) -> str:
    element = _living(r, "RUNNING")
    return f"requeue {element}: {queue.said('scontrol', 'requeue', element)}" if element else ""


def _hold(r: Round) -> str:
    element = _living(r, "PENDING")
    return f"hold {element}: {queue.said('scontrol', 'hold', element)}" if element else ""


def _preempt(r: Round) -> str:
    node = r.draw.choice(queue.NODES)
    words = ("-p", "high", "-n1", "-c4", "-w", node, "-o", "/dev/null", "--wrap", "true")
    return f"a better job on {node}: {queue.said('sbatch', *words).strip()}"


# --- processes ---


def _worker(r: Round, kills: bool = False) -> int:
    """Draw a process that is at an item; to kill, one whose item has killed none: the second time it is blamed."""
    at = workers(r.home)
    found = r.draw.choice(sorted(pid for pid, idx in at.items() if not kills or idx not in r.killed) or [0])
    if found and kills:
        r.killed.add(at[found])
    return found


def _signal(number: signal.Signals) -> Callable[[Round], str]:
    def do(r: Round) -> str:
        pid = _worker(r, kills=number is signal.SIGKILL)
        if not pid:
            return ""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return f"{pid} had just ended"
        return f"{number.name} to {pid}"

    return do


def _freeze(r: Round) -> str:
    pid, seconds = _worker(r), r.draw.uniform(0.5, 4)
    if not pid:
        return ""
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # the disturbance itself: for so long it gives no sign of life
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return f"{pid} ended meanwhile"
    return f"{pid} was frozen for {seconds:.1f} s"


# --- the scheduler ---


def _node_down(r: Round) -> str:
    node = r.draw.choice(queue.NODES)
    said = queue.said("scontrol", "update", f"nodename={node}", "state=down", "reason=chaos")
    return f"{node} down {said}"


def _restart_controller(r: Round) -> str:
    """Kill slurmctld; meanwhile somebody looks, and perhaps cancels or retries."""
    queue.kill_controller()
    away, verb = r.draw.uniform(0, 2), r.draw.choice(VERBS)
    try:
        with r.verb(*verb) as process:
            time.sleep(away)  # the disturbance itself: so long there is no controller
            queue.start_controller()
            code = r.ended(process)
    finally:
        queue.start_controller()
    return f"slurmctld was away for {away:.1f} s; {verb[0]} meanwhile: {code}"


# --- verbs and files ---


def _race(r: Round) -> str:
    """Call two or three verbs at the same time."""
    verbs = r.draw.choices(VERBS, k=r.draw.choice([2, 2, 3]))
    processes = [r.verb(*verb) for verb in verbs]
    return ", ".join(f"{verb[0]}: {r.ended(each)}" for verb, each in zip(verbs, processes, strict=True))


def _cancel(r: Round) -> str:
    """Cancel alone: when it says that all has ended, nothing is in the queue."""
    code = r.ended(r.verb("cancel", "--grace", "1"))
    if code == 0:
        left = queue.elements(r.name)
        r.expect(not left, f"cancel ended well, and left {left}")
        r.expect(not workers(r.home), f"cancel ended well, and left processes {workers(r.home)}")
    return f"cancel: {code}"


_ELSEWHERE = ("unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--uts", "sh", "-c")
_SEEN = 'hostname elsewhere && mount --bind "$1" "$2" && shift 2 && exec "$@"'


def _late_files(r: Round) -> str:
    """Look from another host, whose cache shows the run's files as they were a while ago."""
    old = r.home / "as it was"
    subprocess.run(["cp", "-a", str(r.run.path), str(old)], check=False)  # files may go while it copies
    late = r.draw.uniform(0, _LATE)
    time.sleep(late)  # the disturbance itself: the files are that late
    look = [sys.executable, "-m", "espnet3_parallel", "status", r.run.path, "--json"]
    done = subprocess.run(
        [*_ELSEWHERE, _SEEN, "sh", old, r.run.path, *look],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    shutil.rmtree(old)
    r.expect("Traceback" not in done.stderr and done.stdout.startswith("{"), f"{done.stdout}{done.stderr}")
    states = {each["shard"]: each["state"] for each in json.loads(done.stdout)["shards"]}
    r.none_lost({shard for shard, state in states.items() if state == "lost"}, "a look with old files")
    return f"files {late:.1f} s late: {' '.join(states.values())}"


KINDS = (
    Kind("scancel of an element", _cancel_element, "one"),
    Kind("requeue of an element", _requeue, "one"),
    Kind("hold of an element", _hold),
    Kind("a job with a higher priority", _preempt, "all"),
    Kind("SIGKILL worker", _signal(signal.SIGKILL), "one"),
    Kind("SIGTERM worker", _signal(signal.SIGTERM), "one"),
    Kind("frozen worker", _freeze),
    Kind("node down", _node_down, "all"),
    Kind("kill -9 of slurmctld, and a verb", _restart_controller, "all"),
    Kind("verbs at the same time", _race, "all"),
    Kind("cancel", _cancel, "all"),
    Kind("files seen late", _late_files),
)
