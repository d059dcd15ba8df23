"""The queue of a real SLURM as root and a user see it: looked at, and hurried where it would wait for minutes."""

import os
import re
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil

from tests.clusters.labs import HOME
from tests.waiting import wait_until

NODES = ("n1", "n2", "n3", "n4")
# a start in the second of the job's kill is refused by the node ("already killed"), and counts as the job's end
SOON = "StartTime=now+2seconds"
_PID = HOME / "slurm/pid/slurmctld.pid"


def said(*command: str) -> str:
    """Return what a command of SLURM's prints; it may fail, because its controller may be away."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout if done.returncode == 0 else ""


def elements(run: str = "") -> dict[str, tuple[str, str]]:
    """Return state and reason of each element in the queue, by its id; of one run, where its name is given.

    A slurmctld that was killed before it had saved the end of an earlier round's jobs has those again.
    """
    lines = [line.split("|") for line in said("squeue", "-h", "-r", "-o", "%i|%T|%r|%j").splitlines()]
    return {
        line[0]: (line[1], line[2])
        for line in lines
        if len(line) == 4 and (not run or line[3] == run or not line[3].startswith("espnet3-"))
    }


def hurry() -> None:
    """Start what SLURM would start in two minutes, and release what it holds after a failed start.

    An element whose last step has still to report is left alone: its report would be taken for the end of the next.
    """
    for element, (state, reason) in elements().items():
        if state != "PENDING":
            continue
        if "BeginTime" in reason and waits_long(element) and not has_steps(element):
            said("scontrol", "update", f"jobid={element}", SOON)
        elif re.search("[Hh]eld|Hold", reason):  # JobHeldUser, JobHoldMaxRequeue, launch failed requeued held
            said("scontrol", "release", element)


def waits_long(element: str) -> bool:
    """Whether an element's start is in a minute or two: nobody has hurried it yet."""
    start = said("squeue", "-h", "-j", element, "-o", "%S").strip()
    try:
        return datetime.fromisoformat(start).astimezone() > datetime.now(timezone.utc) + timedelta(seconds=10)
    except ValueError:  # none, or no answer
        return False


def has_steps(element: str) -> bool:
    """Whether a node has a process for an element."""
    number = said("squeue", "-h", "-j", element, "-o", "%A").strip()
    step = f"slurmstepd: [{number}."
    return any(step in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))


def resume() -> None:
    for line in said("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T").splitlines():
        name, state = line.split()
        if state.startswith(("down", "drain")):
            said("scontrol", "update", f"nodename={name}", "state=resume")


def controller() -> int:
    try:
        pid = int(_PID.read_text())
        # a killed one leaves its file, and its number may be another process's by now
        return pid if psutil.Process(pid).name() == "slurmctld" else 0
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return 0


def kill_controller() -> None:
    pid = controller()
    if pid:
        os.kill(pid, 9)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), every=0.02)


def start_controller() -> None:
    """Start slurmctld again, with what it had saved; return when it answers."""
    if not controller():
        subprocess.run(["/usr/sbin/slurmctld"], check=True)
    wait_until(lambda: said("scontrol", "ping").count("UP"), 180, every=0.1)
