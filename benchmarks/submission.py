"""`python -m benchmarks.submission`: what a detached run of many shards costs its submitter.

It is one job array of a SLURM, held there so that nothing runs meanwhile. The first round pays the imports, and is
shown apart. `--lab` starts the SLURM of the cluster tests:

    tests/clusters/run.sh "$PWD/.venv/bin/python" -m benchmarks.submission --lab
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report, tables

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sacct")
PATIENCE = 120.0  # seconds for a cancelled array to leave the queue


@dataclass(slots=True)
class Taken:
    """What one action took, a value for each round."""

    wall_s: list[float] = field(default_factory=list)  # seconds by the clock
    # processor seconds of this process, without those of its children
    cpu_s: list[float] = field(default_factory=list)
    calls: list[dict[str, int]] = field(default_factory=list)  # calls of each of the scheduler's commands


class Counted:
    """The scheduler's commands behind scripts that count their calls.

    Args:
        folder: For the scripts, which come first on the PATH.

    Raises:
        SystemExit: There is no SLURM here.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls"
        for command in COMMANDS:
            real = shutil.which(command)
            if real is None:
                raise SystemExit(f"{command} is not on the PATH: run this where SLURM is, or with --lab")
            script = f'#!/bin/sh\necho {command} >> {shlex.quote(str(self.log))}\nexec {real} "$@"\n'
            (folder / command).write_text(script)
            (folder / command).chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def during(self, action: Callable[[], Any], into: Taken) -> Any:
        """Do something and add what it took."""
        self.log.write_text("")
        begin, cpu = time.perf_counter(), time.process_time()
        result = action()
        into.wall_s.append(time.perf_counter() - begin)
        into.cpu_s.append(time.process_time() - cpu)
        into.calls.append(dict(Counter(self.log.read_text().split())))
        return result


def _wait_for_empty_queue() -> None:
    until = time.monotonic() + PATIENCE
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip():
        if time.monotonic() > until:
            raise TimeoutError(f"the queue was not empty {PATIENCE:g} s after its jobs were cancelled")
        time.sleep(0.05)


def act(folder: Path, shards: int, partition: str, commands: Counted, taken: dict[str, Taken]) -> None:
    """Submit, ask and cancel as a user of `async_mode` does."""
    from benchmarks.systems.ours_runners import Empty, Provider
    from espnet3.parallel import set_parallel

    options = {
        "queue": partition,
        "cores": 1,
        "memory": "400MB",
        "walltime": "00:10:00",
        "interface": "lo",
        "job_extra_directives": ["--hold"],
    }
    set_parallel({"env": "slurm", "n_workers": 4, "options": options, "detached": {"shards": shards}})
    runner = Empty(
        Provider({}),
        output_dir=folder / "run",
        async_specs_dir=folder / "specs",
        async_mode=True,
        progress=False,
    )
    run = commands.during(lambda: runner(range(shards)), taken["submit"])
    status = commands.during(run.status, taken["status"])
    if sum(status.counts.values()) != shards or len(status.counts) != 1:
        raise RuntimeError(f"{shards} shards are not all in the queue: {status.counts}")

    def cancel() -> None:
        run.cancel()
        _wait_for_empty_queue()

    commands.during(cancel, taken["cancel"])


@contextmanager
def lab() -> Iterator[None]:
    """Start the SLURM of the cluster tests for a block of code."""
    from tests.clusters.labs import SLURM

    os.environ.update(SLURM.start())
    try:
        yield
    finally:
        SLURM.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the figures."""
    parser = report.arguments("submission", __doc__, shards=1000, rounds=7)
    parser.add_argument("--partition", default="debug", help="default %(default)s")
    parser.add_argument("--lab", action="store_true", help="start the SLURM of the cluster tests")
    parser.set_defaults(out=None)  # the lab's user may not write to the checkout
    args = parser.parse_args(argv)
    names = ("submit", "status", "cancel")
    taken = {name: Taken() for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="espnet3-submission-") as scratch,
        lab() if args.lab else nullcontext(),
    ):
        (Path(scratch) / "bin").mkdir()
        commands = Counted(Path(scratch) / "bin")
        for number in range(args.rounds + 1):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            act(folder, args.shards, args.partition, commands, taken)
            print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
    head = ["", "calls", "median s", "min .. max", "own CPU s", "first time, s"]
    print(tables.grid(head, [_row(name, one) for name, one in taken.items()]))
    if args.out is not None:
        figures = {name: asdict(one) for name, one in taken.items()}
        report.write(args.out, ["dask-jobqueue"], shards=args.shards, taken=figures)
    return 0


def _row(title: str, one: Taken) -> list[str]:
    """Return a line of the table."""
    wall, cpu = one.wall_s[1:], one.cpu_s[1:]
    calls = ", ".join(f"{n} {command}" for command, n in one.calls[-1].items())
    return [
        title,
        calls,
        tables.number(median(wall)),
        report.spread(wall),
        f"{median(cpu):.3f}",
        f"{one.wall_s[0]:.2f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
