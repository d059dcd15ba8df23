"""What a finished run left, as far as it must be the same for every run."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger import check_receipt
from espnet3.parallel.ledger.errors import LedgerError


@dataclass(frozen=True)
class Outcome:
    """The parts that are compared.

    Attributes:
        results: The bytes of results.jsonl.
        files: The bytes of what the runner's own `merge` wrote.
        errors: Position, index, cause, type and message of each failed item.
        receipt: The counts and hashes that do not depend on who worked where.
        leftovers: Names of temporary files; not a lease's, which may be that of a driver just starting.
    """

    results: bytes
    files: bytes
    errors: tuple[Any, ...]
    receipt: tuple[Any, ...]
    leftovers: tuple[str, ...]


def read(folder: Path, variant: str) -> Outcome:
    """Read a run's folder, and check its receipt.

    Raises:
        AssertionError: The receipt is not of the files that are there.
    """
    try:
        receipt = check_receipt(folder)
    except LedgerError as error:
        raise AssertionError(f"the receipt is not true: {error}") from error
    errors = [json.loads(line) for line in (folder / "errors.jsonl").read_bytes().splitlines()]
    return Outcome(
        results=(folder / "results.jsonl").read_bytes(),
        files=(folder / "all.txt").read_bytes() if variant == "files" else b"",
        errors=tuple(tuple(e[key] for key in ("n", "index", "cause", "type", "message")) for e in errors),
        receipt=(receipt.planned, receipt.ok, receipt.failed, receipt.indices_sha256, receipt.results_sha256),
        leftovers=tuple(sorted(str(p.relative_to(folder)) for p in folder.rglob(".[!l]*.tmp"))),
    )


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Return what is not the same, shortly."""
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
