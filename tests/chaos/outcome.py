"""What a finished run left, as far as it must be the same for every run, and what a disturbance cost."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tests.parallel.ledger.making import receipt_of


@dataclass(frozen=True)
class Outcome:
    results: bytes  # of results.jsonl
    files: bytes  # of what the runner's own `merge` wrote
    errors: tuple[Any, ...]
    receipt: tuple[Any, ...]  # counts and hashes that do not depend on who worked where
    leftovers: tuple[str, ...]  # temporary files; not a lease's, which may be that of a driver just starting


def read(folder: Path, variant: str) -> Outcome:
    """Read a run's folder, and check its receipt."""
    receipt = receipt_of(folder)
    errors = [json.loads(line) for line in (folder / "errors.jsonl").read_bytes().splitlines()]
    return Outcome(
        results=(folder / "results.jsonl").read_bytes(),
        files=(folder / "all.txt").read_bytes() if variant == "files" else b"",
        errors=tuple(tuple(e[key] for key in ("n", "index", "cause", "type", "message")) for e in errors),
        receipt=(receipt.planned, receipt.ok, receipt.failed, receipt.indices_sha256, receipt.results_sha256),
        leftovers=tuple(sorted(str(p.relative_to(folder)) for p in folder.rglob(".[!l]*.tmp"))),
    )


def differences(expected: Outcome, found: Outcome) -> list[str]:
    lines = []
    for one in fields(Outcome):
        a, b = getattr(expected, one.name), getattr(found, one.name)
        if a != b:
            lines.append(f"{one.name}: {_first_difference(a, b)}")
    return lines


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, bytes):
        a, b = a.splitlines(), b.splitlines()
    at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    there, here = a[at : at + 1], b[at : at + 1]
    return f"{len(a)} and {len(b)} of them; first at {at}: {there!r} was expected, and it is {here!r}"


@dataclass
class Disturbance:
    kind: str
    first: int  # the number of its first start
    on_disk: frozenset[int] = frozenset()  # what the folder held after it, before files were damaged
    bound: int = 0  # items that may be computed again because of it
    damaged: bool = False  # files, and not only processes
    again: int = 0  # items that were computed again


def count_again(disturbances: Sequence[Disturbance], calls: Sequence[Sequence[int]]) -> None:
    """Count each item that was computed again, for the disturbance that lost it.

    `calls` has the items begun of each start; the last start was not disturbed, and may compute none twice.
    """
    places = [sum(d.first <= start for d in disturbances) - 1 for start in range(len(calls))]
    places[-1] = len(disturbances)
    repeated = sorted(idx for idx, times in Counter(calls[-1]).items() if times > 1)
    assert not repeated, f"items {repeated} were computed more than once in a start that was not disturbed"
    last: dict[int, int] = {}  # where an item was computed before
    for now, items in zip(places, calls, strict=True):
        for idx in items:
            if idx in last:
                _lost_by(disturbances, idx, last[idx], now).again += 1
            last[idx] = now


def _lost_by(disturbances: Sequence[Disturbance], idx: int, was: int, now: int) -> Disturbance:
    """Return what lost an item that was computed at one place and again at a later one, or at the same."""
    damaging = [d for d in disturbances[was:now] if d.damaged]
    in_flight = was == now or idx not in disturbances[was].on_disk
    return disturbances[was] if in_flight or not damaging else damaging[-1]
