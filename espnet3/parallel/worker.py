"""A detached job's process: `python -m espnet3.parallel.worker SPEC`.

    SPEC                   run what is left of the shard that the file describes
    --tasks FILE INDEX     the same for an element of a job array: FILE lists the specs
    --requeue COMMAND      before --tasks: the command that queues the job again when it stops at its walltime
    --again STATUS         before --tasks: the exit status that makes the scheduler queue it again
    --final STATUS         before --tasks: the exit status where another attempt would end so, too; of a pod, whose user
                           need not be the one who submitted it: elsewhere a file of another user is not believed
    --check                read a spec from standard input and try to make its runner and provider

It ends with 0 when the shard is done, 1 when it failed and 75 when it stopped with items left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from espnet3.parallel.detached.job.attempt import run_shard, wants_requeue
from espnet3.parallel.detached.job.stopping import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, say
from espnet3.parallel.detached.job_spec import CHECKED, JobSpec, load, make_provider, read_spec
from espnet3.parallel.detached.layout import LOG, Layout
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import make_folder, open_to_write, read_record

USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--check"]:
        return _check()
    again = words[:2] if words[0:1] in (["--requeue"], ["--again"], ["--final"]) else None
    if again:
        words = words[2:]
    if len(words) == 3 and words[0] == "--tasks":
        own = again is None or again[0] != "--final"
        return _element(Path(words[1]), words[2], again, own)
    if len(words) == 1 and not words[0].startswith("-"):
        return _run(Path(words[0]))
    print(__doc__, file=sys.stderr)
    return USAGE


@dataclass(frozen=True, slots=True)
class Tasks:
    """What the file of a job array holds: the specs, and the index of the first one."""

    first: int
    specs: list[str]


def task_spec(file: Path, index: str, own: bool = True) -> Path:
    """Return the spec of an element of a job array."""
    tasks = read_record(file, Tasks, own=own)
    return Path(tasks.specs[int(index) - tasks.first])


def _element(tasks: Path, index: str, again: list[str] | None, own: bool) -> int:
    """Run an element of a job array; what it prints goes to the shard's log."""
    try:
        path = task_spec(tasks, index, own)
        spec = read_spec(path, own)
        layout = Layout(Path(spec.run))
        log = layout.shard(spec.shard) / LOG
        if layout.is_there():  # else the run folder is missing, and must not be created here
            make_folder(layout.shard(spec.shard))
        fd = open_to_write(log)
    except (
        ParallelError,
        OSError,
    ) as error:  # without a run folder there is only the scheduler's output file
        say(f"{type(error).__name__}: {error}")
        return int(again[1]) if again and again[0] == "--final" else EXIT_FAILED
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
    status = run_shard(spec)
    if (
        again is not None and again[0] == "--final"
    ):  # a pod that was told to end is replaced, unless the run was
        goes_on = status == EXIT_UNFINISHED and layout.stopped() is None
        return status if status == EXIT_DONE or goes_on else int(again[1])
    if again is None or status != EXIT_UNFINISHED or not wants_requeue(spec):
        return status
    if again[0] == "--again":
        say(f"asking the scheduler to run this again, with exit status {again[1]}")
        return int(again[1])
    say(f"asking the scheduler to run this again: {again[1]}")
    subprocess.run(again[1], shell=True, check=False)  # noqa: S602  a line of our own table, with the job's variables
    return status


def _run(path: Path) -> int:
    try:
        spec = read_spec(path)
    except ParallelError as error:
        say(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    return run_shard(spec)


def _check() -> int:
    """Do what a job does before its first item, short of building the env."""
    spec = JobSpec.from_json(json.loads(sys.stdin.buffer.read()))
    try:
        spec.surroundings.restore()
        load(spec.runner)
        make_provider(load(spec.provider), spec.arguments)
    except ParallelError as error:
        problem = str(error)
    except Exception as error:  # a provider's constructor may raise anything
        traceback.print_exc()
        problem = f"a detached job cannot make the provider: {type(error).__name__}: {error}"
    else:
        return 0
    print(CHECKED + json.dumps(problem), file=sys.stderr, flush=True)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
