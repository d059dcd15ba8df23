"""`python -m benchmarks.submission`: what a detached run of many shards costs, from its submission to its merge.

Its jobs are forked by a scheduler of our own (`light_jobs`), with SLURM's commands; `--slurm`: the SLURM on the PATH.
A hundredth of the shards has an item that fails, and goes again in a retry.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import light_jobs, report, tables

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sacct")


class Steps:
    """The steps of a run; the scheduler's commands are behind scripts that count their calls.

    Args:
        folder: For the scripts, which come first on the PATH.
    """

    def __init__(self, folder: Path) -> None:
        self.taken: dict[str, list[dict[str, Any]]] = {}  # of each step, one for each round
        self.log = folder / "calls"
        for command in COMMANDS:
            real = shutil.which(command) or "false"
            script = f'#!/bin/sh\necho {command} >> {shlex.quote(str(self.log))}\nexec {real} "$@"\n'
            (folder / command).write_text(script)
            (folder / command).chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def take(self, name: str, action: Callable[[], Any], run: Path) -> Any:
        """Do something and add what it took."""
        self.log.write_text("")
        begin, cpu = time.perf_counter(), time.process_time()
        result = action()
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        calls = dict(Counter(self.log.read_text().split()))
        files = sum(len(names) for _, _, names in os.walk(run))
        self.taken.setdefault(name, []).append({"s": wall, "cpu_s": cpu, "calls": calls, "files": files})
        print(f"{name}: {wall:.2f} s", file=sys.stderr, flush=True)
        return result


def act(folder: Path, shards: int, workers: int, options: dict[str, Any], steps: Steps) -> None:
    """Do what a user of `async_mode` does."""
    from benchmarks.systems.ours_runners import FailsAtFirst, Provider
    from espnet3.parallel import set_parallel

    set_parallel({"env": "slurm", "n_workers": workers, "options": options, "detached": {"shards": shards}})
    ways = {"output_dir": folder / "run", "async_specs_dir": folder / "specs", "on_error": "record"}
    facts = {"name": "plain", "args": {"mended": str(folder / "mended"), "every": 100}}
    runner = FailsAtFirst(Provider(facts), async_mode=True, progress=False, **ways)

    def take(name: str, action: Callable[[], Any]) -> Any:
        return steps.take(name, action, folder)

    run = take("submit", lambda: runner(range(shards)))
    take("status, at work", run.status)
    take("wait", run.wait)
    status = take("status, done", run.status)
    failing = len(range(0, shards, 100))
    if (status.ok, status.failed) != (shards - failing, failing):
        raise RuntimeError(f"{shards} shards, {failing} with a failure, ended as {status.counts}")
    (folder / "mended").touch()
    take(f"retry of {failing}", lambda: run.retry(failed_items=True))
    take("wait again", run.wait)
    if list(take("merge", run.merge)) != list(range(shards)):
        raise RuntimeError("not the results of a loop")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the figures."""
    parser = report.arguments("submission", __doc__, shards=1000, rounds=3, workers=16)
    parser.add_argument("--slurm", metavar="PARTITION", help="use the SLURM on the PATH")
    args = parser.parse_args(argv)
    options = {"queue": args.slurm, "cores": 1, "memory": "400MB", "walltime": "00:10:00", "interface": "lo"}
    with (
        tempfile.TemporaryDirectory(prefix="espnet3-submission-") as scratch,
        nullcontext() if args.slurm else light_jobs.scheduler(),
    ):
        (Path(scratch) / "bin").mkdir()
        steps = Steps(Path(scratch) / "bin")
        for number in range(args.rounds):
            folder = Path(scratch, str(number))
            folder.mkdir()
            act(folder, args.shards, args.workers, options, steps)
    head = ["", "calls", "median s", "min .. max", "own CPU s", "files after"]
    print(tables.grid(head, [_row(name, taken) for name, taken in steps.taken.items()]))
    report.write(args.out, ["dask-jobqueue"], shards=args.shards, taken=steps.taken)
    return 0


def _row(title: str, taken: list[dict[str, Any]]) -> list[str]:
    """Return a line of the table."""
    wall, cpu = ([one[name] for one in taken] for name in ("s", "cpu_s"))
    calls = ", ".join(f"{n} {command}" for command, n in taken[-1]["calls"].items())
    row = [title, calls, tables.number(median(wall)), report.spread(wall), f"{median(cpu):.3f}"]
    return [*row, f"{taken[-1]['files']:,}"]


if __name__ == "__main__":
    raise SystemExit(main())
