"""The sessions of a run, from its `events.jsonl`: when each began, how it ended, and its figures."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.files import open_plain
from espnet3.parallel.ledger.session import EVENTS

_MOST_REPAIRS = 20  # sentences that are kept of a session: a disk that fails writes thousands


@dataclass(frozen=True, slots=True)
class Session:
    """One call that opened the run's folder.

    Attributes:
        begin: When, in seconds since the epoch.
        end: When its last event was noted; None where it noted none after it had begun.
        resumed: It went on with what another one had left.
        ok_before: Items that had a result when it began.
        failed_before: Those that had a failure.
        ended: How: "computed", "submitted" (its items went to detached jobs), "stopped", "merged" where it only put
            together what was there, or "" where it said nothing.
        error: Type and message of what stopped it; else "".
        figures: Its `RunSummary` as plain data; empty unless it is "computed".
        submitted: Backend, shards and workers of the jobs it handed over; else empty.
        repaired: What it found damaged, and what was done.
        missed_beats: Signs of life that it could not write.
    """

    begin: float
    end: float | None = None
    resumed: bool = False
    ok_before: int = 0
    failed_before: int = 0
    ended: str = ""
    error: str = ""
    figures: dict[str, Any] | None = None
    submitted: dict[str, Any] | None = None
    repaired: tuple[str, ...] = ()
    missed_beats: int = 0

    def figure(self, name: str) -> float:
        """Return one of the figures; 0 where it is not recorded."""
        return float((self.figures or {}).get(name, 0.0))


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run's folder in their order; a damaged line of its events is passed over."""
    sessions: list[Session] = []
    repairs: list[str] = []  # of a folder that is being opened: they are noted before the session itself
    for event in events_of(run):
        when, kind = seconds_of(event.get("time")), event.get("event")
        if when is None:
            continue
        if kind == "repaired":
            repairs.append(str(event.get("what")))
            continue
        if kind in ("started", "resumed") or not sessions:
            sessions.append(
                Session(
                    when,
                    resumed=kind == "resumed",
                    ok_before=_number(event, "ok"),
                    failed_before=_number(event, "failed"),
                )
            )
        last = sessions[-1]
        if repairs:
            last = replace(last, repaired=(*last.repaired, *repairs)[:_MOST_REPAIRS])
            repairs = []
        sessions[-1] = _told(last, str(kind), event, when)
    return sessions


def seconds_of(text: Any) -> float | None:
    """Return a time in ISO form as seconds since the epoch; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _told(session: Session, kind: str, event: dict[str, Any], when: float) -> Session:
    """Return a session with one more event."""
    facts = {name: value for name, value in event.items() if name not in ("time", "event")}
    if kind in ("started", "resumed"):
        return session
    session = replace(session, end=when)
    if kind == "computed":
        return replace(session, ended=kind, figures=facts)
    if kind == "submitted":
        return replace(session, ended=kind, submitted=facts)
    if kind == "stopped":
        return replace(session, ended=kind, error=f"{facts.get('error')}: {facts.get('message')}")
    if kind == "missed_beats":
        return replace(session, missed_beats=_number(facts, "count"))
    return replace(session, ended=session.ended or kind)


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0


def events_of(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's folder in their order; a damaged line is passed over."""
    try:
        stream = open_plain(run / EVENTS)
    except OSError:  # not written yet, or not for this user
        return
    with stream:
        for line in stream:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # torn: its writer is at it, or was killed there
                continue
            if isinstance(event, dict):
                yield event
