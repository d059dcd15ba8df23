"""PBS (qsub, qstat and qdel, as OpenPBS has them) and Moab (msub, showq, checkjob and canceljob)."""

import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from tests.standins.jobs import Element, Store
from tests.standins.reading import directives, indices, options, refuse, seconds

QUEUES = ("workq", "gpu", "debug")
_VALUES = ("-N", "-q", "-A", "-P", "-l", "-o", "-e", "-j", "-J", "-t", "-v", "-W", "-r", "-S")
_FLAGS = ("-V", "-h", "-z")
_LETTERS = {"waiting": "Q", "running": "R", "done": "F"}


def host() -> str:
    """Return what follows the number in a job's id."""
    return socket.gethostname().split(".")[0]


def job_id(element: Element, *, whole: bool = False) -> str:
    """Return "7.host", "7[2].host", or of the whole array "7[].host"."""
    at = "" if element.index is None else "[]" if whole else f"[{element.index}]"
    return f"{element.job}{at}.{host()}"


def qsub(words: list[str]) -> int:
    facts, text, array = read_submission("qsub", words)
    picked: list[int] | None = None
    if array is not None:
        spec, _, limit = array.partition("%")
        picked = indices(spec)
        if picked is None or len(picked) < 2 or (limit and not limit.isdigit()):
            refuse("qsub", f"invalid job-array option -J {array}: an array has at least two elements")
        facts["limit"] = int(limit or 0)
    job = submit(facts, text, picked, "PBS_ARRAY_INDEX")
    print(f"{job}{'[]' if picked else ''}.{host()}")
    return 0


def read_submission(command: str, words: list[str]) -> tuple[dict[str, Any], str, str | None]:
    """Return the facts of a submission, its script, and its array as written."""
    given, rest = options(command, words, _VALUES, _FLAGS)
    text = sys.stdin.read() if not rest or rest[0] == "-" else _script(command, rest[0])
    written, _ = options(command, directives(text, "#PBS"), _VALUES, _FLAGS)
    merged = {name: [*written.get(name, []), *given.get(name, [])] for name in {**written, **given}}

    def last(name: str, default: str = "") -> str:
        return merged.get(name, [default])[-1]

    queue = last("-q", QUEUES[0])
    if queue not in QUEUES:
        refuse(command, "Unknown queue", 170)
    resources = ",".join(merged.get("-l", []))
    wall = re.search(r"walltime=([\d:]+)", resources)
    cores = re.search(r"(?:ncpus|ppn)=(\d+)", resources)
    memory = re.search(r"mem=(\d+)([kmgt]?)b", resources, re.IGNORECASE)
    if memory and int(memory[1]) >= 1024**2 and memory[2].lower() == "g":  # a petabyte
        refuse(command, "Job violates queue and/or server resource limits", 188)
    facts = {
        "name": last("-N") or os.path.basename(rest[0] if rest else "STDIN"),
        "queue": queue,
        "cores": int(cores[1]) if cores else 1,
        "limit": 0,
        "walltime": seconds(wall[1]) if wall else None,
        "output": last("-o"),
        "error": last("-e"),
        "joined": last("-j") == "oe",
    }
    return facts, text, merged.get("-J", merged.get("-t", [None]))[-1]


def submit(facts: dict[str, Any], text: str, picked: list[int] | None, variable: str) -> int:
    """Queue a submission. Jobs of PBS start in the home folder; PBS_O_WORKDIR is where they were submitted."""
    joined = facts.pop("joined")
    own = "%J" if picked is None else "%J[%I]"
    output = _file(facts["output"], f"{facts['name']}.o%J", f"{own}.{host()}.OU")
    error = None if joined else _file(facts["error"], f"{facts['name']}.e%J", f"{own}.{host()}.ER")
    return Store().submit(
        text,
        picked,
        folder=os.path.expanduser("~"),
        variables={"PBS_O_WORKDIR": os.getcwd(), "PBS_O_QUEUE": facts["queue"], "PBS_JOBNAME": facts["name"]},
        expired="=>> PBS: job killed: walltime 2 exceeded limit 1",
        id_variable="PBS_JOBID",
        element_id="%J[%I]",
        index_variable=variable,
        **{**facts, "output": output, "error": error},
    )


def _script(command: str, path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        refuse(command, f"script file:: {error.strerror}")


def _file(wanted: str, default: str, in_folder: str) -> str:
    place = wanted.split(":", 1)[-1]  # host:path
    if not place:
        return os.path.join(os.getcwd(), default)
    path = os.path.join(os.getcwd(), place)
    return os.path.join(path, in_folder) if place.endswith("/") or os.path.isdir(path) else path


def qstat(words: list[str]) -> int:
    """List jobs: the wide table, or all facts with -f."""
    given, wanted = options("qstat", words, ("-u",), ("-t", "-f"))
    store = Store()
    listed, code = _named(store, wanted) if wanted else (store.seen(history=False), 0)
    if "-f" in given:
        for each in listed:
            lines = "\n".join(f"    {name} = {value}" for name, value in _facts(each).items())
            print(f"Job Id: {job_id(each)}\n{lines}\n")
    elif listed:
        print(
            f"\n{host()}: \n                                                            Req'd  Req'd   Elap"
        )
        print("Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time")
        print("--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----")
        for each in listed:
            print(
                f"{job_id(each):15} {store.user[:8]:8} {each.queue[:8]:8} {each.name[:10]:10} {each.pid or '--':>6} "
                f"  1 {each.cores:3}    --    --  {_LETTERS[each.state]} 00:00"
            )
    return code


def _named(store: Store, names: list[str]) -> tuple[list[Element], int]:
    """Return the jobs of some names and the exit status; say which are unknown, or have ended."""
    listed: list[Element] = []
    code = 0
    known = store.seen(history=True, whole=False)
    for name in names:
        mine = [each for each in known if _is(each, name)]
        if not mine:
            print(f"qstat: Unknown Job Id {name}.{host()}", file=sys.stderr)
            code = 153
        elif all(each.state == "done" for each in mine):
            said = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {name}.{host()} {said}", file=sys.stderr)
            code = 35
        else:
            listed += mine
    return listed, code


def _is(each: Element, name: str) -> bool:
    """Return whether a job is meant by a name: 7, 7[] or 7[2], whatever server follows."""
    found = re.match(r"(\d+)(?:\[(\d*)\])?", name)
    return found is not None and each.job == int(found[1]) and (not found[2] or each.index == int(found[2]))


def _facts(each: Element) -> dict[str, Any]:
    facts: dict[str, Any] = {"Job_Name": each.name, "job_state": _LETTERS[each.state], "queue": each.queue}
    if each.exit_code is not None:
        facts["Exit_status"] = each.exit_code
    if each.state == "waiting":
        slots = Store().slots
        short = "Insufficient amount of resource: ncpus"
        never = f"Can Never Run: {short} (R: {each.cores} A: {slots} T: {slots})"
        facts["comment"] = f"Not Running: {short}" if Store().can_run(each) else never
    return facts


def qdel(words: list[str]) -> int:
    """Delete jobs, whole arrays or single elements: 7, 7[], 7[2]."""
    code = 0
    for name, ended in Store().cancel_named(words):
        if ended is None:
            print(f"qdel: Unknown Job Id {name}", file=sys.stderr)
            code = 153
        elif not ended:
            print(f"qdel: Job has finished {name}", file=sys.stderr)
            code = 35
    return code


# --- Moab: it reads #PBS lines, which dask-jobqueue writes ---

_MOAB_STATES = {"waiting": "Idle", "running": "Running"}


def msub(words: list[str]) -> int:
    facts, text, array = read_submission("msub", words)
    picked: list[int] | None = None
    if array is not None:
        found = re.fullmatch(r"(?:(\w+)\.)?\[(.+)\](?:%(\d+))?", array)
        picked = indices(found[2]) if found else None
        if found is None or picked is None:
            refuse("msub", f"invalid job array {array}")
        facts["limit"] = int(found[3] or 0)
        facts["name"] = found[1] or facts["name"]
    print(f"\n{submit(facts, text, picked, 'MOAB_JOBARRAYINDEX')}")
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
                    f"{str(each.job) + at:18} {store.user:>8} {_MOAB_STATES[state]:>10} {each.cores:5}    00:10:00"
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
            print(f"job {words[0]}\n\nAName: {each.name}\nState: {_MOAB_STATES.get(each.state, ended)}")
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
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "msub": msub,
    "showq": showq,
    "checkjob": checkjob,
    "canceljob": canceljob,
}
LOOKS = ("qstat", "showq", "checkjob")
