"""Moab: msub, showq and canceljob. It reads #PBS lines (dask-jobqueue writes those) and #MSUB lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from tests.standins import pbs
from tests.standins.jobs import Store
from tests.standins.reading import indices, options, refuse

_STATES = {"waiting": "Idle", "running": "Running"}


def msub(words: list[str]) -> int:
    """Submit a script; an array is `-t name.[1-4]%2`."""
    facts, text, array = pbs.read_submission("msub", words, "#PBS")
    picked: list[int] | None = None
    if array is not None:
        found = re.fullmatch(r"(?:(\w+)\.)?\[(.+)\](?:%(\d+))?", array)
        picked = indices(found[2]) if found else None
        if found is None or picked is None:
            refuse("msub", f"invalid job array {array}")
        facts["limit"] = int(found[3] or 0)
        facts["name"] = found[1] or facts["name"]
    print(f"\n{pbs.submit(facts, text, picked, 'MOAB_JOBARRAYINDEX')}")
    return 0


def showq(words: list[str]) -> int:
    """List the jobs that run and those that wait."""
    options("showq", words, ("-u", "-w"))
    store = Store()
    for title, state in (("active jobs", "running"), ("eligible jobs", "waiting")):
        print(
            f"\n{title + '-' * 24}\nJOBID              USERNAME      STATE PROCS   REMAINING            STARTTIME\n"
        )
        for each in store.seen(history=False):
            if each.state == state:
                at = "" if each.index is None else f"[{each.index}]"
                print(
                    f"{str(each.job) + at:18} {store.user:>8} {_STATES[state]:>10} {each.cores:5}    00:10:00"
                )
    return 0


def checkjob(words: list[str]) -> int:
    """Show the state of a job or an element: 7, 7[2]."""
    found = re.fullmatch(r"(\d+)(?:\[(\d+)\])?", words[0])
    index = int(found[2]) if found and found[2] else None
    store = Store()
    for each in store.seen(history=True, whole=False):
        if found and each.job == int(found[1]) and index in (None, each.index):
            ended = "Removed" if each.ended_by == "cancel" else "Completed"
            print(f"job {words[0]}\n\nAName: {each.name}\nState: {_STATES.get(each.state, ended)}")
            if each.state == "waiting":
                procs = (
                    "idle procs available: 0" if store.can_run(each) else f"procs configured: {store.slots}"
                )
                print(f"\nNOTE:  job cannot run in partition base (insufficient {procs} < {each.cores})")
            return 0
    print(f"ERROR:  invalid job specified: {words[0]}", file=sys.stderr)
    return 1


def canceljob(words: list[str]) -> int:
    """Cancel jobs, whole arrays or single elements."""
    code = 0
    for name, ended in Store().cancel_named(words):
        if ended:
            print(f"\njob '{name}' cancelled")
            continue
        print(f"ERROR:  invalid job specified ({name})", file=sys.stderr)
        code = 1
    return code


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "msub": msub,
    "showq": showq,
    "checkjob": checkjob,
    "canceljob": canceljob,
}
LOOKS = ("showq", "checkjob")
