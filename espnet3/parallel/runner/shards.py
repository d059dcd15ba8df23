"""Runs with writers of their own: whole shards, each in a folder, from `open_writers` to `merge`.

A shard is one item of the engine's: it goes to whoever is free, and starts over in an emptied
folder if its worker dies. Inside it, the runner's items go through the same loop as everywhere.
Shards are contiguous stretches of the caller's order and do not depend on the number of workers,
so that concatenating what they wrote gives the same bytes anywhere. A resumed run keeps to the cut
it began with; a shard whose folder has the mark `done` is not run again.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.parallel.engine.exceptions import failure_of, pickle_error
from espnet3.parallel.engine.loop import run_items
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.env.injection import bind
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.records import ItemFailure, Policy

SHARDS = 64  # per run: enough to even out 8 workers, few enough to look at
_MARK = "in_flight.json"
_DEATHS = "deaths.json"


@dataclass(frozen=True, slots=True)
class Hooks:
    """A runner's functions, as a worker needs them."""

    forward: Callable[..., Any]
    batch_forward: Callable[..., Any] | None
    open_writers: Callable[..., Any]
    write_record: Callable[..., Any]
    close_writers: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's work.

    Attributes:
        number: Its place in the order; its folder is `split.<number>`.
        folder: Where its writers write.
        items: Its indices.
        begin: The position of the first one in the run's index list.
        cost: What it costs, in the unit of the items' costs.
        skip: Positions not to run, with the failure to put in their place (poison of earlier tries).
        late: How often the item at a position has run out of time.
        alone: Run its items one by one, without batches: one of a batch is poison.
    """

    number: int
    folder: str
    items: Sequence[Any]
    begin: int = 0
    cost: float = 1.0
    skip: dict[int, ItemFailure] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What comes back.

    Attributes:
        values: One per item: its line for the run folder, or its `ItemFailure`.
        failed: Positions of the failures.
        retries: Times an item was tried again.
        stop: The failure that stopped the shard; its cause is "runner" for the runner's own mistake.
        error: Its exception, pickled, where it can be.
    """

    values: list[Any]
    failed: list[int]
    retries: int = 0
    stop: ItemFailure | None = None
    error: bytes | None = None


def cut(n: int, cost: Sequence[float] | None, align: int) -> list[int]:
    """Cut `n` items into at most `SHARDS` contiguous shards of about equal cost, at batch boundaries.

    Returns:
        Where each shard begins.
    """
    goal = (sum(cost) if cost is not None else n) / max(1, min(SHARDS, n))
    begins, begin, have = [], 0, 0.0
    for i in range(n):
        have += cost[i] if cost is not None else 1.0
        if i + 1 == n or (have >= goal * (1 - 1e-9) and (i + 1) % align == 0):
            begins.append(begin)
            begin, have = i + 1, 0.0
    return begins


def shards_of(
    begins: Sequence[int], items: Sequence[Any], cost: Sequence[float] | None, base: Path
) -> list[Shard]:
    """Return the shards that begin at these positions, each with its folder under `base`."""
    shards = []
    for number, begin in enumerate(begins):
        end = begins[number + 1] if number + 1 < len(begins) else len(items)
        weight = sum(cost[begin:end]) if cost is not None else float(end - begin)
        shards.append(Shard(number, str(base / f"split.{number}"), items[begin:end], begin, weight))
    return shards


def make_check(hooks: Hooks) -> Callable[[dict[str, Any]], None]:
    """Return what checks an env against all functions of a runner, before the first shard."""

    def check(env: dict[str, Any]) -> None:
        bind(hooks.forward, env)
        if hooks.batch_forward is not None:
            bind(hooks.batch_forward, env)
        bind(hooks.open_writers, env)
        bind(hooks.write_record, env, n_positional=3)
        bind(hooks.close_writers, env, n_positional=2)

    return check


def make_shard_function(hooks: Hooks, policy: Policy, keep_values: bool) -> Callable[..., ShardResult]:
    """Return the function that runs one shard in its env."""

    def run_shard(shard: Shard, **env: Any) -> ShardResult:
        return _run(shard, env, hooks, policy, keep_values)

    return run_shard


def _run(shard: Shard, env: dict[str, Any], hooks: Hooks, policy: Policy, keep_values: bool) -> ShardResult:
    folder = Path(shard.folder)
    deaths = _read_deaths(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _DEATHS).write_text(json.dumps(deaths))
    mark = folder / _MARK
    name = f"shard {shard.number}"
    state: dict[str, Any] = {"shard_id": shard.number, "shard_dir": str(folder)}
    batched = hooks.batch_forward is not None and not shard.alone
    many = bind(hooks.batch_forward, env) if batched and hooks.batch_forward is not None else None
    call = Call(bind(hooks.forward, env), many)
    result = ShardResult([], [])
    retries, at, n = 0, 0, len(shard.items)
    doing = "open_writers"
    try:
        writers = bind(hooks.open_writers, env)(folder)
        try:
            write = bind(hooks.write_record, env, n_positional=3)
            while at < n:
                if at in shard.skip:
                    result.failed.append(at)
                    result.values.append(shard.skip[at])
                    at += 1
                    continue
                step = policy.batch_size or 1 if batched else 1
                end = min([at + step, n, *[k for k in shard.skip if k > at]])
                mark.write_text(json.dumps([at, end]))
                block = run_items(shard.items[at:end], call, policy, name)
                retries += block.retries
                for position, value in enumerate(block.values):
                    if position in block.failed:
                        result.failed.append(at + position)
                        result.values.append(value)
                        continue
                    index = shard.items[at + position]
                    try:
                        kept = value if keep_values else None
                        line = encode_line(shard.begin + at + position, index, kept)
                    except Exception as error:  # a value's class may raise anything while it is looked at
                        lost = failure_of(error, index, 1, name, cause="result")
                        if policy.on_error == "raise":
                            return replace(result, stop=lost, error=pickle_error(error))
                        result.failed.append(at + position)
                        result.values.append(lost)
                        continue
                    doing, state["index"] = "write_record", index
                    write(writers, value, state)
                    result.values.append(line)
                if block.error is not None:
                    stop = block.stop or failure_of(block.error, shard.items[at], 1, name, cause="runner")
                    return replace(result, stop=stop, error=pickle_error(block.error))
                at = end
            doing = "close_writers"
        finally:
            bind(hooks.close_writers, env, n_positional=2)(writers, state)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a hook's mistake (SystemExit too) stops the run under any policy
        index = state["index"] if doing == "write_record" else f"{doing} of {name}"
        failure = failure_of(error, index, 1, name)
        return replace(result, stop=failure, error=pickle_error(error))
    mark.unlink(missing_ok=True)  # none where all items were skipped
    (folder / _DEATHS).unlink()
    return replace(result, retries=retries)


def _read_deaths(folder: Path) -> list[list[int]]:
    """Return the stretches [begin, end) that were in flight when this shard's workers died."""
    deaths: list[list[int]] = []
    for name in (_DEATHS, _MARK):
        try:
            found = json.loads((folder / name).read_text())
        except (
            FileNotFoundError,
            ValueError,
        ):  # a worker that died while it wrote a mark had not begun the item
            continue
        deaths += found if name == _DEATHS else [found]
    return deaths


def forget_flight(shard: Shard) -> None:
    """Say that nothing was in flight: a worker was told to end, and no item is to blame."""
    (Path(shard.folder) / _MARK).unlink(missing_ok=True)


def forget_deaths(shard: Shard) -> None:
    """Drop the marks of an earlier session: whoever killed its driver killed workers too, whatever they did."""
    for name in (_DEATHS, _MARK):
        Path(shard.folder, name).unlink(missing_ok=True)


def died_in_items(shard: Shard) -> bool:
    """Whether any death of a shard's workers came while an item ran, and not in a writer hook."""
    return bool(_read_deaths(Path(shard.folder)))


def in_flight(shard: Shard) -> tuple[int, int] | None:
    """Return the stretch [begin, end) of items that a shard's worker was in when it ended."""
    try:
        begin, end = json.loads((Path(shard.folder) / _MARK).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return begin, end


def poisoned(shard: Shard, deadly: int) -> tuple[list[int], bool]:
    """Return what deaths of a shard's worker had in common.

    Args:
        shard: The shard.
        deadly: How many deaths that are.

    Returns:
        Positions that were alone in flight at so many deaths, and whether a batch was.
    """
    counts = Counter(tuple(d) for d in _read_deaths(Path(shard.folder)))
    common = [stretch for stretch, n in counts.items() if n >= deadly]
    alone = [begin for begin, end in common if end - begin == 1 and begin not in shard.skip]
    return alone, any(end - begin > 1 for begin, end in common)
