"""The failed items of a run, and one item once more, in this process."""

from __future__ import annotations

import cProfile
import faulthandler
import json
import pdb  # noqa: T100  what --pdb opens
import pstats
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from espnet3.parallel.detached.job_spec import SCRIPT
from espnet3.parallel.engine.exceptions import below_ours
from espnet3.parallel.engine.pickling import stand_for_script
from espnet3.parallel.ledger.lines import facts_of
from espnet3.parallel.messages import counted, duration, masked
from espnet3.parallel.views.replaying import Replay, Replayed, failed_items, index_of
from espnet3_parallel.flames import FlameGraph, sampler
from espnet3_parallel.output import as_json_option, say, verb, wrapped
from espnet3_parallel.runs import run_argument, trusting

_NONE = "no item of this run has failed"
_DEADLY = {"poison": "it ended its worker process", "timeout": "it took longer than item_timeout"}


@verb(run_argument, as_json_option)
def failures(run: Path, as_json: bool) -> None:
    """List the failed items of RUN so far, each with the type and the message of its error.

    `espnet3-parallel replay RUN ITEM` runs one of them again.
    """
    found = failed_items(run)
    lines = [f"{one.index}\t{one.error_type}\t{one.message.partition(chr(10))[0]}" for one in found]
    facts = [{"index": one.index, **facts_of(one)} for one in found]
    text = json.dumps(facts, indent=2, default=str) if as_json else "\n".join(lines or [_NONE])
    say(masked(text))


@verb(
    run_argument,
    click.argument("index", required=False),
    click.option("--all-failed", is_flag=True, help="Every item whose outcome is a failure."),
    click.option("--pdb", "debug", is_flag=True, help="Open the debugger where the item raises."),
    click.option("--profile", is_flag=True, help="Print where time goes (cProfile); with py-spy, draw it."),
    trusting,
    as_json_option,
)
def replay(
    run: Path, index: str | None, all_failed: bool, debug: bool, profile: bool, trust: bool, as_json: bool
) -> None:
    """Run the item INDEX of RUN again, in this process, with its recorded provider, code and seed.

    Says what is not as it was then; nothing is written to RUN. Exit status: 0 if it returns, 1 if it raises.
    """
    if (index is None) != all_failed:
        raise click.UsageError("give an INDEX, or --all-failed")
    profiles = Path.cwd() if profile else None
    again = Replay(run, trust)  # from now on the working directory is the run's
    if SCRIPT in sys.modules:  # processes that an item spawns load the script in place of this command
        stand_for_script(str(sys.modules[SCRIPT].__file__))
    try:
        indices = [one.index for one in failed_items(run)] if index is None else [index_of(run, index)]
        told = [f"not as it was: {line}" for line in again.differences]
        told += [f"note: {line}" for line in again.notes] + ([] if indices else [_NONE])
        faulthandler.enable()  # an item that crashes this process shall say where
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # items may print, too
            for line in told:
                say(wrapped(line))
            found = [_one(again, one, debug, profiles) for one in indices]
    finally:
        again.close()
    raised = sum(one.error is not None for one in found)
    if as_json:
        say(json.dumps([_record(one) for one in found], indent=2))
    elif len(indices) > 1:
        say(f"{counted(len(indices), 'item')}: {raised:,} raised again")
    sys.exit(1 if raised else 0)


def _record(found: Replayed) -> dict[str, Any]:
    now = {"result": f"{found.result!r:.400}"}
    if found.error is not None:
        now = {"type": type(found.error).__name__, "message": masked(str(found.error))}
    return {"index": found.index, "seconds": found.seconds, "same": found.same, **now}


def _one(again: Replay, index: Any, debug: bool, profiles: Path | None) -> Replayed:
    found = again(index, None if profiles is None else _profiled(index, profiles))
    if (then := found.then) is not None:
        tries = "1 try" if then.attempts == 1 else f"{then.attempts} tries"
        how = _DEADLY.get(then.cause, f"{then.error_type}: {then.message}")
        say(wrapped(f"item {index!r} then: failed, {how} ({tries}, {then.place})"))
    alike = {True: ", the same as then", False: ", not the same as then", None: ""}[found.same]
    if found.error is None:
        say(f"item {index!r} now: returned in {duration(found.seconds)}{alike}: {found.result!r:.400}")
    else:
        say(f"item {index!r} now: raised in {duration(found.seconds)}{alike}", flush=True)
        shown = found.error.with_traceback(below_ours(found.error.__traceback__))
        trace = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
        say(masked(trace), sys.stderr, end="")
    if debug and found.error is not None:
        pdb.post_mortem(found.error.__traceback__)
    return found


@contextmanager
def _profiled(index: Any, folder: Path) -> Iterator[None]:
    file = folder / f"replay-{re.sub('[^a-zA-Z0-9_.-]+', '_', str(index))[:60]}.svg"
    command, table = sampler(), cProfile.Profile()
    flames = FlameGraph(command, file) if command is not None else None
    try:
        with flames or nullcontext(), table:
            yield
    finally:
        pstats.Stats(table, stream=sys.stdout).sort_stats("cumulative").print_stats(25)
        if flames is None:
            say("no flame graph: it takes py-spy (pip install py-spy)")
        else:
            no = f"no flame graph by py-spy: {flames.problem}"
            say(wrapped(no) if flames.problem else f"a flame graph is in {file}")
