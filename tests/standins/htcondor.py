"""HTCondor: condor_submit, condor_q, condor_history and condor_rm, with jobs that are materialized late."""

import os
import re
import shlex
import sys
from collections.abc import Callable

from tests.standins.jobs import Element, Store
from tests.standins.reading import refuse

_PROCESS = "STANDIN_PROCESS"
_STATES = {"waiting": "1", "running": "2"}


def condor_submit(words: list[str]) -> int:
    """Submit a description of `key = value` lines and a `queue` line."""
    try:
        with open(words[-1]) as file:
            lines = file.read().splitlines()
    except OSError as error:
        refuse("condor_submit", f"ERROR: Failed to open command file ({error.strerror})")
    given: dict[str, str] = {}
    count = None
    for line in lines:
        if found := re.fullmatch(r"\s*queue\s*(\d*)\s*", line, re.IGNORECASE):
            count = int(found[1] or 1)
        elif "=" in line:
            key, _, value = line.partition("=")
            given[key.strip().lower()] = value.strip().replace("$(DOLLAR)", "$")
    if count is None:
        refuse("condor_submit", "ERROR: the description has no queue command")
    if any("$((" in line for line in lines):  # the shell's arithmetic, unless written as $(DOLLAR)((
        refuse("condor_submit", "ERROR: failed to parse the description")
    for key in ("output", "error"):
        given[key] = given.get(key, "").replace("$(LogDirectory)", given.get("logdirectory", ""))
    folder = given.get("initialdir", os.getcwd())
    run = [given["executable"], *_arguments(given.get("arguments", ""))]
    quoted = [shlex.quote(word).replace("$(Process)", f"'\"${_PROCESS}\"'") for word in run]
    job = Store().submit(
        f"#!/bin/sh\nexec {' '.join(quoted)}\n",
        list(range(count)),
        name=given.get("batch_name", "job"),
        queue="",
        cores=_cores(given),
        limit=int(given.get("max_materialize", "0")),
        walltime=None,
        folder=folder,
        output=_file(folder, given["output"]),
        error=None if given["error"] == given["output"] else _file(folder, given["error"]),
        variables=dict(word.partition("=")[::2] for word in _arguments(given.get("environment", ""))),
        id_variable="STANDIN_CLUSTER",
        index_variable=_PROCESS,
    )
    if "-verbose" in words:
        print("".join(f"** Proc {job}.{process}:\n" for process in range(count)))
    print(f"Submitting job(s)\n{count} job(s) submitted to cluster {job}.")
    return 0


def _cores(given: dict[str, str]) -> int:
    """Return the cores of a description, which may name an attribute of its own."""
    wanted = given.get("request_cpus", given.get("requestcpus", "1"))
    if wanted.lower().startswith("my."):
        wanted = given.get(wanted.lower(), given.get(f"+{wanted[3:].lower()}", "1"))
    return int(wanted)


def _arguments(text: str) -> list[str]:
    """Take HTCondor's quoting apart: double quotes around all, single quotes around a word, each doubled for itself."""
    if not text.startswith('"'):
        return text.split()
    inner = text[1:-1].replace('""', '"')
    words = re.findall(r"(?:[^\s']|'(?:[^']|'')*')+", inner)
    return [re.sub(r"'((?:[^']|'')*)'", lambda found: found[1].replace("''", "'"), word) for word in words]


def _file(folder: str, pattern: str | None) -> str | None:
    if not pattern:
        return None
    for macro, letter in (("$(Cluster)", "%J"), ("$(Process)", "%I"), ("$F(MY.JobId)", "%J.%I")):
        pattern = pattern.replace(macro, letter)
    return os.path.join(folder, pattern)


def _next(elements: list[Element]) -> int:
    """Return the number of the next element of a cluster to be made; the others are not in the queue yet."""
    done = sum(each.state == "done" for each in elements)
    limit = elements[0].limit or len(elements)
    return min(len(elements), done + limit)


def condor_q(words: list[str]) -> int:
    """List jobs as `-af:j` fields, clusters with `-factory`, or a total with `-totals`."""
    store = Store()
    chosen = [word for word in words if re.fullmatch(r"\d+(\.\d+)?", word)]
    at = next((place for place, word in enumerate(words) if word.startswith("-af")), len(words))
    fields = words[at + 1 :]
    seen = store.seen(history=False)
    made = [each for each in seen if (each.index or 0) < _next(store.select(each.job))]
    if chosen:
        made = [each for each in made if chosen_by(each, chosen)]
    if "-factory" in words:
        for job in sorted({each.job for each in seen if each.limit}):
            values = {"ClusterId": str(job), "JobMaterializeNextProcId": str(_next(store.select(job)))}
            print(*(values.get(field, "undefined") for field in fields))
    elif "-better-analyze" in words:
        for each in made:
            print(_analysis(each, store.can_run(each)))
    elif "-totals" in words or not fields:
        print(f"-- Schedd: local\nTotal for query: {len(made)} jobs; 0 completed, 0 removed")
    else:
        for each in made:
            values = {"JobStatus": _STATES[each.state], "JobBatchName": each.name}
            print(f"{each.job}.{each.index}", *(values.get(field, "undefined") for field in fields))
    return 0


def _analysis(each: Element, can_run: bool) -> str:
    """Return why a job waits: what of its requirements no machine meets, and how many machines that rules out."""
    fits = int(can_run)
    number = f"{each.job}.{each.index:03}"
    return f"""
The Requirements expression for job {number} reduces to these conditions:

         Slots
Step    Matched  Condition
-----  --------  ---------
[0]           1  TARGET.Arch == "X86_64"
[1]           {fits}  TARGET.Cpus >= {each.cores}

{each.job:03}.{each.index:03}:  Run analysis summary ignoring user priority.  Of 1 machines,
      {1 - fits} are rejected by your job's requirements
      0 reject your job because of their own requirements
      {fits} match but are serving other users
      0 are able to run your job
"""


def chosen_by(each: Element, names: list[str]) -> bool:
    """Return whether a job is meant by one of some names: "7" or "7.3"."""
    return str(each.job) in names or f"{each.job}.{each.index}" in names


def condor_history(words: list[str]) -> int:
    """List jobs that have ended, with `-af:j JobStatus ExitCode`."""
    store = Store()
    chosen = [word for word in words if re.fullmatch(r"\d+(\.\d+)?", word)]
    for each in store.seen(history=True):
        if each.state == "done" and chosen_by(each, chosen) and (each.started or not each.ended_by):
            print(f"{each.job}.{each.index} {3 if each.ended_by else 4} {each.exit_code}")
    return 0


def condor_rm(words: list[str]) -> int:
    """Remove clusters or jobs: 7, 7.3."""
    code = 0
    store = Store()
    for name in words:
        chosen = [each for each in store.elements() if chosen_by(each, [name])]
        if not chosen:
            print(f"Couldn't find/remove all jobs in cluster {name}", file=sys.stderr)
            code = 1
        else:
            ended = [store.cancel(each) for each in chosen]
            print(f"All jobs in cluster {name} have been marked for removal" if any(ended) else "")
    return code


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "condor_submit": condor_submit,
    "condor_q": condor_q,
    "condor_history": condor_history,
    "condor_rm": condor_rm,
}
LOOKS = ("condor_q", "condor_history")
