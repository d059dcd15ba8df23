"""LSF: bsub, bjobs and bkill."""

import os
import re
import shlex
import socket
import sys
from collections.abc import Callable

from tests.standins.jobs import Element, Store
from tests.standins.reading import directives, indices, options, refuse, seconds

QUEUES = ("normal", "gpu", "debug")
_VALUES = ("-J", "-o", "-e", "-oo", "-eo", "-q", "-P", "-n", "-R", "-M", "-W", "-cwd", "-env")
_FLAGS = ("-x", "-r", "-rn", "-B", "-N")


def bsub(words: list[str]) -> int:
    """Submit a script from standard input or a file, or a command."""
    given, rest = options("bsub", words, _VALUES, _FLAGS)
    if not rest:
        text = sys.stdin.read()
    elif os.path.isfile(rest[0]) and len(rest) == 1:
        with open(rest[0]) as file:
            text = file.read()
    else:
        text = f"#!/bin/sh\nexec {shlex.join(rest)}\n"
    written, _ = options("bsub", directives(text, "#BSUB"), _VALUES, _FLAGS)
    merged = {name: values[-1] for name, values in {**written, **given}.items()}
    queue = merged.get("-q", QUEUES[0])
    if queue not in QUEUES:
        print(f"{queue}: No such queue. Job not submitted.", file=sys.stderr)
        return 255
    name, picked, limit = merged.get("-J", "job"), None, 0
    if array := re.fullmatch(r"(.*?)\[(.+)\](?:%(\d+))?", name):
        name, picked, limit = array[1], indices(array[2]), int(array[3] or 0)
        if picked is None:
            refuse("bsub", "Bad job array index. Job not submitted.", 255)
    clock = merged.get("-W")
    folder = merged.get("-cwd", os.getcwd())
    job = Store().submit(
        text,
        picked,
        name=name,
        queue=queue,
        cores=int(merged.get("-n", "1").split(",")[0]),
        limit=limit,
        walltime=seconds(clock, minutes_last=True) if clock else None,
        folder=folder,
        output=_file(folder, merged.get("-oo", merged.get("-o"))),
        error=_file(folder, merged.get("-eo", merged.get("-e"))),
        variables={"LSB_JOBNAME": name, "LSB_QUEUE": queue, "LS_SUBCWD": os.getcwd(), "LSB_JOBINDEX": "0"},
        expired="TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        id_variable="LSB_JOBID",
        index_variable="LSB_JOBINDEX",
    )
    print(f"Job <{job}> is submitted to {'' if '-q' in merged else 'default '}queue <{queue}>.")
    return 0


def _file(folder: str, pattern: str | None) -> str | None:
    return None if pattern is None else os.path.join(folder, pattern)


def state(each: Element) -> str:
    """Return LSF's word for the state of a job."""
    if each.state == "done":
        return "EXIT" if each.exit_code else "DONE"
    return {"waiting": "PEND", "running": "RUN"}[each.state]


def bjobs(words: list[str]) -> int:
    """List jobs; `-o "jobid stat ... delimiter='|'"` chooses the fields."""
    given, wanted = options("bjobs", words, ("-u", "-o"), ("-a", "-noheader", "-p"))
    store = Store()
    listed = store.seen(history="-a" in given or bool(wanted), whole=not wanted)
    if wanted:
        for name in wanted:
            if not any(_is(each, name) for each in listed):
                print(f"Job <{name}> is not found", file=sys.stderr)
        listed = [each for each in listed if any(_is(each, name) for name in wanted)]
    elif not listed:
        print("No unfinished job found", file=sys.stderr)
        return 0
    if "-p" in given:
        listed = [each for each in listed if each.state == "waiting"]
    chosen = given.get("-o", ["jobid user stat queue exec_host job_name"])[-1]
    mark = re.search(r"delimiter='(.*?)'", chosen)
    fields = re.sub(r"delimiter='.*?'", "", chosen).split()
    joint = mark[1] if mark else " "
    if "-noheader" not in given:
        print(joint.join(field.upper() for field in fields))
    for each in listed:
        values = {
            "jobid": str(each.job),
            "jobindex": str(each.index or 0),
            "user": store.user,
            "stat": state(each),
            "queue": each.queue,
            "exec_host": socket.gethostname() if each.pid else "-",
            "exit_code": str(each.exit_code or "-"),
            "job_name": each.name,
        }
        print(joint.join(values.get(field, "-") for field in fields))
        if "-p" in given:
            never = "Not enough processors to meet the job's spanning requirement"
            print(f" {'Job slot limit reached' if store.can_run(each) else never}: 1 host;")
    return 0


def _is(each: Element, name: str) -> bool:
    """Return whether a job is meant by a name: "101", or "101[2]"."""
    return name in (str(each.job), f"{each.job}[{each.index}]")


def bkill(words: list[str]) -> int:
    """Kill jobs, whole arrays or single elements: 101, "101[2]"."""
    code = 0
    for name, ended in Store().cancel_named(words):
        if ended:
            print(f"Job <{name}> is being terminated")
            continue
        why = "No matching job found" if ended is None else "Job has already finished"
        print(f"Job <{name}>: {why}", file=sys.stderr)
        code = 255
    return code


COMMANDS: dict[str, Callable[[list[str]], int]] = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill}
LOOKS = ("bjobs",)
