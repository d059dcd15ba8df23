"""A run folder, opened new, for the same run again or for another one, and the driver's work in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import uuid
from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from espnet3.parallel.checks import RESUME, argument
from espnet3.parallel.errors import add_note
from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import ChangedRunError, DamagedFolderError, LedgerError
from espnet3.parallel.ledger.identity import Identity, changed_packages, changes
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.ledger.lines import index_json
from espnet3.parallel.ledger.merge import RECEIPT, Receipt, merge_splits
from espnet3.parallel.ledger.split import (
    DONE,
    ERRORS,
    FAILED,
    LEFT,
    OK,
    RESULTS,
    SESSION,
    SPEC,
    SPLIT,
    Counted,
    Scan,
    SplitWriter,
    split_folders,
)
from espnet3.parallel.messages import masked, warn_caller
from espnet3.parallel.provenance.shown import origin
from espnet3.parallel.records import ItemFailure

EVENTS = "events.jsonl"
SHARDS = "shards"  # a key of plans whose shards have writers of their own
SCHEMA = 1
_SHOWN = 500  # characters of an error in an event


@dataclass(eq=False, repr=False)
class OpenRun(Counted):
    """A run folder in the hands of the one driver that holds its lease; its methods are for one thread at a time.

    A context manager that marks the session as done when it is left without an error.
    """

    path: Path
    run_id: str
    items: Sequence[Any]
    items_sha256: str
    lease: Lease
    plan: dict[str, Any]  # how the work was cut when the folder was new

    def __post_init__(self) -> None:
        self._kind = kind_of(self.plan)
        spec = {"schema": SCHEMA, "run_id": self.run_id, "indices": self.items_sha256}
        self.split = SplitWriter(self.path, spec, self._kind)
        scan = Scan(self.path, self.items, self.items_sha256, self._kind)
        self._events = files.Appender(self.path / EVENTS)
        self.state = scan.state  # when the folder was opened, like `ok` and `failed`, which count it
        self.repaired: list[str] = []  # sentences about damage and its repair
        for sentence in scan.repaired:
            self._note_repair(sentence)

    def left(self, retry_failed: bool = False) -> Sequence[int]:
        """Return the positions still to be computed, in order: a range where that is all of them."""
        if not self.ok and (retry_failed or not self.failed):
            return range(len(self.state))
        wanted = b"[%b]" % bytes([LEFT, FAILED] if retry_failed else [LEFT])
        return array("q", (each.start() for each in re.finditer(wanted, self.state)))

    def resuming(self, left: int) -> str:
        """Return the line to print: "resuming: 6,000 done, 4,000 left"; empty for a new run."""
        if not self.ok and not self.failed:
            return ""
        failed = f" ({self.failed:,} failed before)" if self.failed else ""
        return f"resuming: {len(self.state) - left:,} done, {left:,} left{failed}"

    def append(self, lines: Sequence[bytes], positions: Sequence[int] | None = None) -> None:
        """Put results on disk: lines of `encode_line`, in one write.

        When it returns, they survive the death of this process; a power failure may cost the last second.
        """
        self._before_write()
        self.split.append(lines, positions if isinstance(positions, range) else None)

    def append_failures(self, failures: Iterable[tuple[int, ItemFailure]]) -> None:
        """Put failed items on disk: position and record of each."""
        self._before_write()
        self.split.append_failures(failures)

    def has_shard(self, shard: tuple[Path, range], retry_failed: bool = False) -> bool:
        """Tell whether a shard with writers of its own was finished, and need not be run again."""
        folder, positions = shard
        states = self.state[positions.start : positions.stop]
        whole = LEFT not in states and not (retry_failed and FAILED in states)
        return whole and files.read_or_none(folder / DONE) == self._mark(positions)

    def shard_done(
        self, folder: Path, positions: range, results: dict[int, bytes], failures: dict[int, ItemFailure]
    ) -> None:
        """Note that a shard's writers have been closed, and the outcomes of its items.

        The mark comes first: between the two, the shard counts as not done. A result that an earlier
        session noted is not noted again; the shard may have been repeated for one failed item.
        """
        self.lease.check()
        files.write_json(folder / DONE, self._mark(positions))
        self.append([line for position, line in results.items() if self.state[position] != OK])
        self.append_failures(failures.items())

    def _mark(self, positions: range) -> dict[str, Any]:
        return {"indices": self.items_sha256, "begin": positions.start, "end": positions.stop}

    def _before_write(self) -> None:
        self.lease.check()
        if self.split.folder is None:
            with files.writing(self.path / RECEIPT):
                (self.path / RECEIPT).unlink(missing_ok=True)  # it no longer covers everything in the folder

    def event(self, kind: str, **facts: Any) -> None:
        """Note in `events.jsonl` that something happened now."""
        note_event(self._events, kind, facts)

    def merge(self, finished: bool = True) -> Receipt:
        """Write the merged, ordered files and the receipt that proves them; not `finished`: `note_finished` follows."""
        self.lease.check()
        self.split.sync()
        merged = merge_splits(
            self.path, self.items, self.items_sha256, self._note_repair, self._kind, finished
        )
        self.event("merged", planned=merged.planned, ok=merged.ok, failed=merged.failed)
        return merged

    def _note_repair(self, sentence: str) -> None:
        if sentence not in self.repaired:  # the scan at the start has seen most of them
            self.repaired.append(sentence)
            self.event("repaired", what=sentence)

    def close(self, done: bool = True) -> None:
        """Close the files and give the lease back; a second call does nothing."""
        with ExitStack() as stack:
            stack.callback(self.lease.release)
            stack.callback(self._events.close)
            self.split.close(done)

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            try:
                self.event("stopped", error=kind.__qualname__, message=str(error)[:_SHOWN])
            finally:
                self.close(done=False)
        except LedgerError as second:  # a full disk stays full: the first error is the one to report
            if error is not None and not isinstance(error, DamagedFolderError):
                add_note(error, f"closing the run folder failed as well: {second}")


def kind_of(plan: dict[str, Any]) -> str:
    """Return the first part of the names of the folders of outcomes, for the plan in `run.json`."""
    return SESSION if SHARDS in plan else SPLIT


def note_event(events: files.Appender, kind: str, facts: dict[str, Any]) -> None:
    """Append to `events.jsonl` that something happened now."""
    # escaped to ASCII: a message may hold lone surrogates
    events.append(
        [json.dumps({"time": files.now(), "event": kind, **masked(facts)}, default=str).encode() + b"\n"]
    )


RUN = "run.json"
INDICES = "indices.json"  # the index list, to find indices that a later one lacks
MANIFEST = "manifest.json"  # how the run is cut, for tools of ESPnet3
_MOST_ITEMS = 1 << 32  # looking at a run takes a byte for each
# By the holder of the lease; drafts of a lease are not ours
_OLD = re.compile(r"old\.\d+")
_WRITTEN_WHOLE = (RUN, INDICES, RECEIPT, RESULTS, ERRORS, MANIFEST)


def open_run(
    path: str | os.PathLike[str], identity: Identity, items: Sequence[Any], resume: bool | str = True
) -> OpenRun:
    """Open a run folder, new or with the outcomes of earlier sessions."""
    resume = resumed(resume)
    path = Path(path)
    if re.fullmatch(rf"({SPLIT}|{SESSION})\.\d+", path.name) and os.path.exists(path.parent / RUN):
        raise LedgerError(f"{path} is a part of the run in {path.parent}: take another output_dir")
    files.make_folder(path, parents=True)
    lease = Lease(path)
    run_id = uuid.uuid4().hex
    with files.writing(path):  # a folder of another user may not be read either
        lease.acquire(run_id)
    with ExitStack() as undo:
        undo.callback(lease.release)
        _remove_leftovers(path)
        before = _begin_anew(path) if resume is False else None
        old, damage = _run_before(path)
        if damage is not None and resume is True:
            raise damage
        if damage is not None:
            set_aside(path, only=(RUN,))
        lost = _lost_indices(path, old, items)
        differs = changes(old, identity, lost) if old else []
        if differs and resume is True:
            found = (split / RESULTS for split in _sessions(path))
            if any(file.exists() and file.stat().st_size for file in found):
                raise ChangedRunError(str(path), differs)
            before = _begin_anew(path) or before
            old, differs = {}, []
        plan = _plan_to_keep(old or _said_by_manifest(path, identity), identity, lost == [])
        if plan is None and differs:
            set_aside(path)
        plan = identity.plan if plan is None else plan
        if updated := changed_packages(old, identity):
            warn_caller(
                f"{path} has results of other versions ({', '.join(updated)}); what is left is computed with these. "
                "resume=False starts anew"
            )
        if differs or (old.get("indices") or {}).get("sha256") != identity.indices["sha256"]:
            _keep_done(path, old, identity)
            kept = {"aside": before and before.name, **old}
            _write_run(path, run_id, replace(identity, plan=plan), items, kept, differs)
        run = OpenRun(path, run_id, items, identity.indices["sha256"], lease, plan)
        if damage is not None:
            run.event("repaired", what=f"{damage}; forced")
        run.event("resumed" if old or damage else "started", run_id=run_id, ok=run.ok, failed=run.failed)
        undo.pop_all()
        return run


def resumed(resume: bool | str) -> bool | str:
    """Return how a run is resumed: as its call says, or "force" where `ESPNET3_RESUME` says so."""
    argument("resume", resume, RESUME)
    return "force" if resume is True and os.environ.get("ESPNET3_RESUME") == "force" else resume


def _plan_to_keep(old: dict[str, Any], identity: Identity, has_grown: bool) -> dict[str, Any] | None:
    plan, said = old.get("plan") or {}, old.get("indices") or {}
    if SHARDS not in plan and SHARDS not in identity.plan:
        return identity.plan
    is_same = said.get("sha256") == identity.indices["sha256"]
    if SHARDS not in plan or SHARDS not in identity.plan or not (is_same or has_grown):
        return None
    more = [] if is_same else [said["count"], *(n for n in identity.plan[SHARDS] if n > said["count"])]
    return {SHARDS: plan[SHARDS] + more}


def _keep_done(path: Path, old: dict[str, Any], identity: Identity) -> None:
    # the shards that are done of a list that has grown are done of the longer one
    for split in split_folders(path):
        mark = files.read_or_none(split / DONE) or {}
        if mark.get("indices") == (old.get("indices") or {}).get("sha256", ""):
            files.write_json(split / DONE, {**mark, "indices": identity.indices["sha256"]})


def _said_by_manifest(path: Path, identity: Identity) -> dict[str, Any]:
    # a shard's mark says of which list it is
    shards = (files.read_or_none(path / MANIFEST) or {}).get("shards", [])
    begins = [0, *itertools.accumulate(len(shard.get("items", [])) for shard in shards)]
    is_whole = begins.pop() == identity.indices["count"]
    return {"plan": {SHARDS: begins}, "indices": identity.indices} if is_whole else {}


def _lost_indices(path: Path, old: dict[str, Any], items: Sequence[Any]) -> list[str] | None:
    said, is_cut = old.get("indices") or {}, SHARDS in (old.get("plan") or {})
    if not said.get("count"):
        return None
    was = range(*said["range"]) if "range" in said else (files.read_or_none(path / INDICES) or {}).get("list")
    if was is None:
        return None
    both = isinstance(was, range) and isinstance(items, range) and was.step == items.step
    if both and not is_cut and (not was or (was[0] in items and was[-1] in items)):
        return []
    texts = [index_json(item).decode() for item in was] if isinstance(was, range) else was
    present = [index_json(item).decode() for item in items]
    if is_cut:  # its shards are stretches of the list
        return [] if present[: len(texts)] == texts else None
    rest, known = iter(present), set(present)
    if all(text in rest for text in texts):  # each after the one before
        return []
    return [text for text in texts if text not in known] or None


def _remove_leftovers(path: Path) -> None:
    found = [leftover for name in _WRITTEN_WHOLE for leftover in files.leftovers(path, name)]
    for split in _sessions(path):
        found += [leftover for name in (SPEC, DONE) for leftover in files.leftovers(split, name)]
    for leftover in found:
        with files.writing(leftover):
            leftover.unlink(missing_ok=True)


def _sessions(path: Path) -> list[Path]:
    return [*split_folders(path), *split_folders(path, SESSION)]


def _write_run(
    path: Path, run_id: str, identity: Identity, items: Sequence[Any], old: dict[str, Any], differs: list[str]
) -> None:
    if not isinstance(items, range):  # of a range `run.json` says all
        files.write_json(path / INDICES, {"list": [index_json(item).decode() for item in items]})
    history, time = list(old.get("history", [])), files.now()
    if differs:
        history.append({"time": time, "forced": differs})
    facts = {"schema": SCHEMA, "run_id": run_id, "created": old.get("created", time), "aside": old["aside"]}
    facts |= {one.name: getattr(identity, one.name) for one in fields(identity)}  # no copy of a large config
    files.write_json(path / RUN, {**facts, "origin": origin(identity.runner["file"]), "history": history})


def read_run(path: Path, *, own: bool = False) -> dict[str, Any]:
    """Return the content of a folder's `run.json`."""
    run = files.read_json(path / RUN, Identity, own=own)
    count = run.get("indices", {}).get("count", 0)
    if type(count) is not int or not 0 <= count <= _MOST_ITEMS:
        raise DamagedFolderError(f"{path / RUN} is damaged: no run has {count} indices")
    return run


def _run_before(path: Path) -> tuple[dict[str, Any], DamagedFolderError | None]:
    advice = (
        'What the splits hold is intact: resume="force" takes over the results of this index list; '
        "resume=False moves all aside and starts anew"
    )
    try:
        old = read_run(path)
    except FileNotFoundError:
        if not split_folders(path):
            if moved := set_aside(path):
                warn_caller(
                    f"{path} held files called like those of a run, and no run: they are in {moved} now"
                )
            return {}, None
        if (path / MANIFEST).exists() and not (path / EVENTS).exists():
            return {}, DamagedFolderError(
                f"{path} holds a run of ESPnet3's own layer ({MANIFEST}, and no {RUN}), which does not say by what "
                f"model and config its results were made; with a file {SPLIT}.*/lock it may be at work there. "
                "resume=False moves it aside and starts anew; or take another output_dir"
            )
        return {}, DamagedFolderError(f"{path / RUN} is missing, and there are results. {advice}")
    except DamagedFolderError as error:
        return {}, DamagedFolderError(f"{error}. {advice}")
    if not isinstance(old.get("schema"), int) or not old.keys() >= {"created", "code"}:
        return {}, DamagedFolderError(f"{path / RUN} is damaged: it has no schema number. {advice}")
    if old["schema"] > SCHEMA:
        raise DamagedFolderError(
            f"{path / RUN} has schema {old['schema']}, and this version knows {SCHEMA}: use the newer version"
        )
    return old, None


def _begin_anew(path: Path) -> Path | None:
    # one replaced run is kept: the last that was finished, else the last
    moved = set_aside(path)
    said = (moved and files.read_or_none(moved / RUN)) or {}
    name = str(said.get("aside"))
    earlier = path / name
    if moved is None or not _OLD.fullmatch(name) or earlier.is_symlink() or not (earlier / RUN).exists():
        return moved
    with files.writing(earlier):
        if (earlier / RECEIPT).exists() and not (moved / RECEIPT).exists():
            shutil.rmtree(moved)
        else:
            shutil.rmtree(earlier)
            os.rename(moved, earlier)
    return earlier


def set_aside(path: Path, only: Sequence[str] = ()) -> Path | None:
    """Move a run's files to a new `old.<n>` beside them.

    Interrupted at any point, it leaves a run that lacks some results: `run.json` goes last, and files made from the
    splits go first.
    """
    own = [*_sessions(path), *(plan.parent for plan in path.glob("detached/plan.json"))]
    given = only or (RECEIPT, RESULTS, ERRORS, *(one.name for one in own), EVENTS, MANIFEST, INDICES, RUN)
    names = [name for name in given if os.path.lexists(path / name)]
    if not names:
        return None
    with files.writing(path / "old"):
        folders = (path / f"old.{number}" for number in itertools.count())
        target = next(folder for folder in folders if not os.path.lexists(folder))
        target.mkdir(mode=0o700)
        for name in names:
            os.rename(path / name, target / name)
        files.sync_folder(target)
        files.sync_folder(path)
    return target
