"""Stand-ins of the Example scheduler's commands: exsub, exstat and exdel."""

import os
import re
import socket
import sys

from tests.standins.jobs import Store
from tests.standins.reading import directives, seconds


def exsub(script):
    """Queue a script."""
    with open(script) as file:
        text = file.read()
    given = dict(word[2:].split("=", 1) for word in directives(text, "#EX"))
    tasks = re.fullmatch(r"(\d+)\.\.(\d+)", given.get("tasks", ""))
    indices = list(range(int(tasks[1]), int(tasks[2]) + 1)) if tasks else None
    job = Store().submit(
        text,
        indices,
        name=given["name"],
        queue=given.get("lane", "slow"),
        cores=int(given["slots"]),
        limit=int(given.get("at-once", 0)),
        walltime=seconds(given["time"], minutes_last=True) if "time" in given else None,
        folder=os.getcwd(),
        output=os.path.join(os.getcwd(), given["log"]) if "log" in given else None,
        error=None,
        variables={},
        id_variable="EX_JOB",
        index_variable="EX_TASK",
    )
    print(f"accepted as job {job} of this day")


def exstat(*words):
    """List all jobs, those that have ended too."""
    states = {"waiting": "QUEUED", "running": "ACTIVE"}
    for each in Store().elements():
        ended = "REMOVED" if each.ended_by else "BROKEN" if each.exit_code else "DONE"
        index = "" if each.index is None else f"+{each.index}"
        node = socket.gethostname() if each.pid else ""
        print(f"{each.job}{index}:{states.get(each.state, ended)}:{node}")


def exdel(*names):
    """Remove jobs, "7", and whole arrays, "7+all"."""
    store = Store()
    for name in names:
        for each in store.select(int(name.removesuffix("+all"))):
            store.cancel(each)


if __name__ == "__main__":
    {"exsub": exsub, "exstat": exstat, "exdel": exdel}[sys.argv[1]](*sys.argv[2:])
