"""Runners in a program of several processes, as of distributed training: rank 0 computes, the others wait for it.

Such a program trains in all its ranks, and then each of them calls the same runners. Rank 0 runs the items; any other
rank reads the results of rank 0 from the run folder.

    rank 0    computes ──> receipt.json ──> lease given back         or rank0_failed.json
    rank 1    waits ·····························> reads results, calls merge         raises what is in it

The rank of a process comes from the first of these:

    torch.distributed, where it is initialised in this process
    RANK                                         (torchrun)
    SLURM_PROCID, in a job step of several tasks (srun)
    LOCAL_RANK, NODE_RANK, GROUP_RANK            (Lightning's own processes): rank 0 is 0 in all of them

Inside an item, without an `output_dir` and with `every_rank=True`, each rank runs its own items.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from espnet3.parallel.checks import loaded
from espnet3.parallel.engine.exceptions import describe_error
from espnet3.parallel.engine.inside import inside_item
from espnet3.parallel.errors import NoOutputDirError
from espnet3.parallel.ledger.errors import ChangedRunError, IncompleteRunError, LedgerError
from espnet3.parallel.runner.progress import say
from espnet3.parallel.runner.run import Run, finish

FAILED = "rank0_failed.json"  # in the run folder: the error of rank 0, for the waiting ranks
_STARTED = time.time()  # older files of rank 0 are of an earlier start of the program
_RAISED = set[tuple[str, float]]()  # names and times of such files that this process has raised
_SILENT = 10.0  # seconds for which a rank waits without a word, where progress is not wanted
_LOOK = 0.2  # seconds between two looks: a file on another host's disk sends no event
_LIGHTNING = ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
_VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", *_LIGHTNING)
_PATIENCE = 1800.0  # seconds without a sign of rank 0; torch.distributed waits as long for a rank by default


class Rank(NamedTuple):
    """The number of a process in a distributed program, and the variable or module that says so."""

    number: int
    told_by: str


def rank_of(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Return this process's rank; None in a program of one process."""
    # only a program that has imported it can have initialised it
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), "torch.distributed")
    told = {name: environment.get(name, "") for name in _VARIABLES}
    said = {name: int(text) for name, text in told.items() if text.isascii() and text.isdigit()}
    world = said.get("WORLD_SIZE")
    if world is not None and (world == 1 or said.get("RANK", 0) >= world):
        return None
    tasks = said.get("SLURM_STEP_NUM_TASKS") or said.get("SLURM_NTASKS") or 1
    for names in (("RANK",), ("SLURM_PROCID",) if tasks > 1 else (), _LIGHTNING):
        found = [Rank(said[name], f"{name}={said[name]}") for name in names if name in said]
        if found:
            return max(found, key=lambda rank: rank.number)
    return None


def shared_rank(run: Run) -> Rank | None:
    """Return this process's rank where the ranks of its program share a run; None where each has its own."""
    if run.runner.every_rank or inside_item():
        return None
    rank = rank_of()
    if rank is not None and rank.number and run.folder is None and run.runner.async_mode:
        raise NoOutputDirError(
            f"this process is rank {rank.number} ({rank.told_by}), and only rank 0 submits jobs; for the others to "
            "find them, async_mode requires output_dir: pass one to the runner, or every_rank=True"
        )
    return None if run.folder is None else rank


@contextlib.contextmanager
def telling_other_ranks(run: Run, rank: Rank | None) -> Iterator[None]:
    """Write the error that stops the run of rank 0 to a file, for the other ranks."""
    if rank is None or rank.number or run.folder is None:
        yield
        return
    from espnet3.parallel.ledger.files import write_json  # here, as the rest of the ledger

    file = run.folder / FAILED
    with contextlib.suppress(OSError):  # the run itself raises errors of its folder
        file.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        kind, message, _ = describe_error(error)
        with contextlib.suppress(OSError):  # no folder, or a full disk: the first error is raised
            write_json(file, {"error": f"{kind}: {message}"})
        raise


def results_of_rank_0(run: Run, rank: Rank) -> Any:
    """Wait for rank 0, and return its result."""
    from espnet3.parallel.ledger.folder import SHARDS, read_run
    from espnet3.parallel.ledger.merge import Results

    folder = _Wait(run, rank).until(lambda wait: wait.is_complete())
    shards = len(read_run(folder)["plan"].get(SHARDS, ()))
    return finish(run.runner, run.items, Results(folder), folder, shards)


def wait_for_submission(run: Run, rank: Rank, plan: Path) -> None:
    """Wait until rank 0 has submitted a detached run."""
    _Wait(run, rank).until(lambda wait: plan.exists() and wait.differences() == [] and not wait.is_held())


class _Wait:
    def __init__(self, run: Run, rank: Rank) -> None:
        assert run.folder is not None
        self._run = run
        self._folder = run.folder
        self._rank = rank
        self._identity = run.identity()

    def until(self, done: Callable[[_Wait], bool]) -> Path:
        parent, heard = os.getppid(), time.monotonic()
        silent_until = heard + (0 if self._run.runner.progress else _SILENT)
        while not done(self):
            if time.monotonic() >= silent_until:
                silent_until = math.inf
                say(
                    f"{type(self._run.runner).__name__}: rank {self._rank.number} ({self._rank.told_by}) waits for the "
                    f"results of rank 0 in {self._folder}; every_rank=True gives each rank a run of its own"
                )
            self._raise_failure()
            if os.getppid() != parent:
                raise self._error(
                    "the process that has started this one is gone, and probably rank 0 as well"
                )
            now = time.monotonic()
            if self.is_held():
                heard = now
            elif now - heard > _PATIENCE:
                raise self._error(f"no process has worked in this folder for {_PATIENCE:g} s")
            time.sleep(_LOOK)
        return self._folder

    def is_held(self) -> bool:
        from espnet3.parallel.ledger.lease import holder_lives

        return holder_lives(self._folder)

    def is_complete(self) -> bool:
        from espnet3.parallel.ledger.merge import RECEIPT, read_receipt

        try:
            receipt, written = read_receipt(self._folder), os.stat(self._folder / RECEIPT).st_mtime
        except (LedgerError, OSError):  # not yet, or being moved aside
            return False
        differs = self.differences()
        if differs is None or self.is_held():
            return False
        # otherwise rank 0 takes the folder anew
        if differs and written > _STARTED and self._run.runner.resume is True:
            raise ChangedRunError(str(self._folder), differs)
        again = bool(receipt.failed) and self._run.retry_failed
        return not differs and receipt.planned == len(self._run.items) and receipt.finished and not again

    def differences(self) -> list[str] | None:
        from espnet3.parallel.ledger.folder import read_run
        from espnet3.parallel.ledger.identity import changes

        try:
            return changes(read_run(self._folder), self._identity)
        except (LedgerError, OSError):
            return None

    def _raise_failure(self) -> None:
        from espnet3.parallel.ledger.files import read_json

        file = self._folder / FAILED
        try:
            written = os.stat(file).st_mtime
            said = read_json(file)["error"]
        except OSError:
            return
        if written < _STARTED or (str(file), written) in _RAISED:
            return  # of an earlier start of the program, or of an earlier call
        _RAISED.add((str(file), written))
        raise self._error(f"its run failed with {said}")

    def _error(self, why: str) -> Exception:
        return IncompleteRunError(
            f"{self._folder} has no results of rank 0 for this process, which is rank {self._rank.number} "
            f"({self._rank.told_by}): {why}",
            "Start the whole program again. If each rank has a run of its own, pass every_rank=True to the runner (and "
            "another output_dir in each)",
        )
