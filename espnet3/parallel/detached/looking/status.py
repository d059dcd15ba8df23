"""How a run is: every shard's files, and one question to the backend about those that say nothing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.detached.launch.handover import Queue, launcher
from espnet3.parallel.detached.layout import FOLDER, PLAN, Layout, Plan
from espnet3.parallel.detached.states import (
    JobState,
    RunStatus,
    disk_now,
    holder_lives,
    holder_of,
    shard_status,
)
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import DamagedFolderError, FolderInUseError
from espnet3.parallel.ledger.files import open_plain, read_json
from espnet3.parallel.ledger.folder import RUN, read_run
from espnet3.parallel.ledger.lines import check_line
from espnet3.parallel.ledger.merge import RECEIPT, read_receipt
from espnet3.parallel.ledger.session import SHARDS
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SESSION, SPEC, SPLIT, split_folders
from espnet3.parallel.provenance.record import changed_files, shortened


def run_status(layout: Layout, plan: Plan) -> RunStatus:
    """Return how every shard is."""
    ids, now = job_ids(layout), disk_now(layout.folder)
    notes = _changed_sources(plan)
    shards = range(plan.n_shards)
    found = [shard_status(layout, plan, n, ids.get(str(n), ""), now, None) for n in shards]
    silent = {str(s.shard): s.job_id for s in found if s.job_id and may_be_queued(s.state)}
    if silent:
        queue: Queue = {}
        home, original = layout.home(), layout.original()
        try:
            if original is None:
                queue = launcher(plan.env).query(layout, silent)
            else:
                queue = {int(shard): (JobState.LOST, "") for shard in silent}
        except OSError as error:
            notes.append(f"the scheduler does not answer ({error}): what gives no sign of life is unknown")
        if home is not None:
            what = "is a copy of" if original is not None else "was moved here from"
            notes.append(
                f"the run {what} {home}, where its jobs belong; `espnet3 retry` computes here what is left"
            )
        for shard in map(int, silent):
            found[shard] = shard_status(layout, plan, shard, ids.get(str(shard), ""), now, queue)
            if home is not None and found[shard].state is JobState.LOST and not found[shard].note:
                found[shard] = replace(found[shard], note=f"its job was submitted for {home}")
    if (layout.stopped() or {}).get("at_item"):
        again = shlex.join(["espnet3", "retry", str(layout.run)])
        notes.append(
            f"on_error is 'raise', so one failed item stops the run. Mend what it failed of, then `{again}`; or "
            f"`{again} --on-error record`, which keeps its failure and goes on with the other items"
        )
    merged = (layout.run / RECEIPT).exists()
    status = RunStatus(str(layout.run), plan.env, tuple(found), merged, ())
    if (driver := driver_of(layout.run)) and not status.alive:
        notes = [f"a driver is at work in this folder: {driver}"]
    elif merged and not status.done and not status.alive:
        notes = ["a driver has finished the run since: its merged files hold an outcome of every item"]
    return replace(status, notes=tuple(notes))


def driver_of(run: Path) -> str:
    """Return process, host and start of the driver that is at work in a run's folder; empty where none is."""
    if not holder_lives(run, disk_now(run)):
        return ""
    held = holder_of(run) or {}
    return f"process {held.get('pid')} on {held.get('host')}, since {held.get('since')}"


def job_ids(layout: Layout) -> dict[str, str]:
    """Return the job of each shard that was ever submitted, by the shard's number."""
    jobs = layout.jobs()
    return {**jobs.get("earlier", {}), **jobs.get("jobs", {})}


def may_be_queued(state: JobState) -> bool:
    """Whether the backend may know more: no sign of life, or an end after which it starts the job again."""
    return state in (JobState.UNKNOWN, JobState.UNFINISHED, JobState.TIMEOUT)


def _changed_sources(plan: Plan) -> list[str]:
    changed = changed_sources(plan)
    if not changed:
        return []
    what = "; ".join(shortened(changed))
    advice = (
        "take it back, or submit again with resume=False or 'force' (a recipe's stage: ESPNET3_RESUME=force)"
    )
    return [f"changed since the submission: {what}. Jobs that start now are refused: {advice}"]


def changed_sources(plan: Plan) -> list[str]:
    """Return what of the run's code has changed in its files, for jobs that read them."""
    snapshot = DetachedSettings.of(plan.settings).snapshot  # the copy does not change
    return [] if snapshot else changed_files(plan.code)


def refuse_living(run: Path) -> None:
    """Raise if a run folder has detached jobs that are queued or at work.

    Cheap for a folder that never had any.
    """
    if (run / FOLDER / PLAN).exists():
        layout = Layout(run)
        status_of_ended(layout, layout.plan())


def status_of_ended(layout: Layout, plan: Plan) -> RunStatus:
    """Return the status of a run none of whose jobs is queued or at work."""
    status = run_status(layout, plan)
    if status.alive:
        raise FolderInUseError(_in_use(layout.run, status))
    return status


def _in_use(run: Path, status: RunStatus) -> str:
    counts = ", ".join(f"{n} {state.value}" for state, n in status.counts.items())
    unknown = next((f": {s.note}" for s in status.shards if s.state is JobState.UNKNOWN and s.note), "")
    return (
        f"{run} is in use by detached jobs ({counts}{unknown}). `espnet3 wait` waits for them, `espnet3 cancel` ends "
        "them; or take another output_dir"
    )


_OK, _FAILED = 1, 2
_SHOWN = 5  # folders with a run that are named where there is none


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """A run with `output_dir`, as it is now.

    Attributes:
        run: Its folder.
        items: Items of the run.
        ok: Those with a result.
        failed: Those with a failure.
        alive: Whether its driver is at work.
        merged: Whether the merged files and their receipt are there.
        driver: The driver that is at work: process, host, and since when; empty where none is.
        notes: Other remarks.
    """

    run: str
    items: int
    ok: int
    failed: int
    alive: bool
    merged: bool
    driver: str = ""
    notes: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether every item has an outcome, and the merged files prove it."""
        return self.merged and not self.alive

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "done": self.done, "notes": list(self.notes)}


def folder_status(path: Path) -> FolderStatus:
    """Return how the run of a folder is."""
    try:
        run = read_run(path)
    except FileNotFoundError:
        raise ConfigError(no_run(path)) from None
    driver = driver_of(path)
    alive = bool(driver)
    if (path / RECEIPT).exists():
        receipt = read_receipt(path)
        failed = sum(receipt.failed.values())
        return FolderStatus(str(path), receipt.planned, receipt.ok, failed, alive, True, driver)
    indices = run.get("indices", {})
    kind = SESSION if SHARDS in run.get("plan", {}) else SPLIT
    state = bytearray(indices.get("count", 0))
    notes = []
    for split in split_folders(path, kind):
        if not _is_of(split, indices.get("sha256")):
            notes.append(f"{split.name} is of another index list and is not counted")
            continue
        for name, outcome in ((ERRORS, _FAILED), (RESULTS, _OK)):
            for position in _positions(split / name):
                if position < len(state) and state[position] != _OK:
                    state[position] = outcome
    ok, failed = state.count(_OK), state.count(_FAILED)
    return FolderStatus(str(path), len(state), ok, failed, alive, False, driver, tuple(notes))


def no_run(path: Path) -> str:
    """Return a message for a folder that holds no run, which names those below it that do."""
    below = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"*/{RUN}"))
    more = ", ..." if len(below) > _SHOWN else ""
    there = f" (there are runs in {', '.join(below[:_SHOWN])}{more})" if below else ""
    return f"{path} holds no run{there}: give the runner's output_dir, with its shard_subdir"


def _is_of(split: Path, indices_sha256: Any) -> bool:
    try:
        return bool(read_json(split / SPEC).get("indices") == indices_sha256)
    except (FileNotFoundError, DamagedFolderError):  # the run itself looks these up by their index
        return False


def _positions(file: Path) -> Iterator[int]:
    try:
        stream = open_plain(file, 1 << 20)
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            position = check_line(line)
            if position >= 0:  # else torn: the driver is writing it, or was killed there
                yield position


_POLL = (0.1, 10.0)  # seconds between two looks: at first, and after a while
_SHARE = 0.05  # of the time waited so far, between those


class Status(Protocol):
    """What a look at a run returns."""

    @property
    def alive(self) -> bool:
        """Whether somebody may still write."""
        ...


S = TypeVar("S", bound=Status)


def watch(
    look: Callable[[], S], timeout: float | None = None, seen: Callable[[S], object] | None = None
) -> S:
    """Look at a run until nobody works on it any more."""
    begin = time.monotonic()
    end = None if timeout is None else begin + timeout
    while True:
        status = look()
        left = None if end is None else end - time.monotonic()
        if not status.alive or (left is not None and left <= 0):
            return status
        if seen is not None:
            seen(status)
        pause = min(_POLL[1], max(_POLL[0], _SHARE * (time.monotonic() - begin)))
        time.sleep(pause if left is None else min(pause, left))  # files on a shared disk send no event
