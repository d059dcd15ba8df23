"""A detached job's process: `python -m espnet3.parallel.worker SPEC`.

    SPEC                   run what is left of the shard that the file describes
    --tasks FILE INDEX     the same for one of the shards that FILE lists, and then for others of them that are free
    --requeue COMMAND      before --tasks: the command that queues the job again when it stops at its walltime
    --again STATUS         before --tasks: the exit status that makes the scheduler queue it again
    --final STATUS         before --tasks: the exit status if another attempt would fail as well; for pods, which may
                           run as another user and therefore read files of other users
    --check                read a spec from standard input and try to make its runner and provider

It ends with 0 when the shard is done, 1 when it failed and 75 when it stopped with items left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

from espnet3.parallel.detached.job.attempt import Job
from espnet3.parallel.detached.job.stopping import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, SHARD, log_to, say
from espnet3.parallel.detached.job_spec import CHECKED, JobSpec, load, make_provider, read_spec
from espnet3.parallel.detached.layout import ENDED, Ended, Layout, Tasks
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import make_folder, read_or_none, read_record


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--check"]:
        return _check()
    has_option = len(words) > 1 and words[0] in ("--requeue", "--again", "--final")
    option, value, *rest = words if has_option else ["", "", *words]
    if len(rest) == 3 and rest[0] == "--tasks":
        return _element(Path(rest[1]), int(rest[2]), option, value)
    if len(words) == 1 and not words[0].startswith("-"):
        try:
            spec = read_spec(Path(words[0]))
        except ParallelError as error:
            say(f"{type(error).__name__}: {error}")
            return EXIT_FAILED
        return Job(spec, [spec.shard]).run()
    print(__doc__, file=sys.stderr)
    return 2


def _element(file: Path, index: int, option: str, value: str) -> int:
    own = option != "--final"
    try:
        tasks = read_record(file, Tasks, own=own)
        layout = Layout(Path(tasks.run))
        spec = read_spec(layout.spec(tasks.shards[index - tasks.first]), own)
        make_folder(layout.shard(spec.shard))  # not those above: they may have been moved away
        log_to(layout.shard(spec.shard))
    except (ParallelError, OSError) as error:  # printed to the scheduler's output file
        say(f"{type(error).__name__}: {error}")
        return EXIT_FAILED if own else int(value)
    job = Job(spec, tasks.shards, own)
    status = job.run()
    if not own:  # a stopped pod is replaced, unless the run was stopped
        goes_on = status == EXIT_UNFINISHED and layout.stopped() is None
        return status if status == EXIT_DONE or goes_on else int(value)
    ended = read_or_none(layout.shard(job.place[SHARD]) / ENDED, Ended) or {}
    if not option or status != EXIT_UNFINISHED or not ended.get("requeue"):
        return status
    if option == "--again":
        say(f"asking the scheduler to run this again, with exit status {value}")
        return int(value)
    say(f"asking the scheduler to run this again: {value}")
    subprocess.run(value, shell=True, check=False)  # noqa: S602  a line of our own table, with the job's variables
    return status


def _check() -> int:
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
