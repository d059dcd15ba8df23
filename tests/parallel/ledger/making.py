"""Small runs for the tests: what a driver would do, without one."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.folder import OpenRun, open_run
from espnet3.parallel.ledger.identity import Identity, identify
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.ledger.merge import Receipt, read_receipt
from espnet3.parallel.records import ItemFailure

N = 20


class Runner:
    pass


class OtherRunner:
    pass


class Provider:
    pass


def identity(
    items: Sequence[Any],
    config: Any = None,
    runner: type = Runner,
    seed: int | None = None,
    plan: dict[str, Any] | None = None,
) -> Identity:
    config = {"beam": 5} if config is None else config
    return identify(runner, Provider, config, items, seed=seed, plan=plan)


def begin(path: Path, items: Sequence[Any] = range(N), resume: bool | str = True, **what: Any) -> OpenRun:
    """Open a run of `Runner` as a driver would."""
    return open_run(path, identity(items, **what), items, resume)


def value_of(item: Any) -> Any:
    return {"text": f"<{item}>", "n": [item]}


def lines_of(items: Sequence[Any], positions: Iterable[int]) -> list[bytes]:
    return [encode_line(p, items[p], value_of(items[p])) for p in positions]


def failure(item: Any, cause: str = "error") -> ItemFailure:
    return ItemFailure(item, "ValueError", f"bad {item}", "Traceback ...", 1, "worker 1", cause)


def partial(path: Path, positions: Iterable[int], items: Sequence[Any] = range(N), **what: Any) -> None:
    """Run one session that computes these positions."""
    with begin(path, items, **what) as run:
        run.append(lines_of(items, positions))


def finished(path: Path, items: Sequence[Any] = range(N), **what: Any) -> bytes:
    """Compute what is left, merge, and return the merged file."""
    with begin(path, items, **what) as run:
        run.append(lines_of(items, run.left()))
        run.merge()
    return (path / "results.jsonl").read_bytes()


def expected(items: Sequence[Any] = range(N)) -> bytes:
    return b"".join(
        json.dumps({"index": item, "result": value_of(item)}, separators=(",", ":")).encode() + b"\n"
        for item in items
    )


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def receipt_of(folder: Path) -> Receipt:
    """Return a run's receipt, its hashes compared with the merged files."""
    receipt = read_receipt(folder)
    for name in ("results", "errors"):
        found = hashlib.sha256((folder / f"{name}.jsonl").read_bytes()).hexdigest()
        assert found == getattr(receipt, f"{name}_sha256"), f"{name}.jsonl is not the file of its receipt"
    return receipt
