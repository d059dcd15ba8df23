"""The failed items of a run, and one item once more, in this process."""

from __future__ import annotations

import cProfile
import faulthandler
import json
import os
import pdb  # noqa: T100  what --pdb opens
import pstats
import re
import sys
import traceback
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from espnet3.parallel.engine.exceptions import below_ours
from espnet3.parallel.messages import counted, masked
from espnet3.parallel.records import place_of
from espnet3.parallel.timing.flames import FlameGraph, sampler
from espnet3.parallel.views.charts import duration
from espnet3.parallel.views.replaying import Replay, Replayed, failed_items, index_of
from espnet3_parallel.output import as_json_option, say, verb, wrapped
from espnet3_parallel.runs import run_argument, trusting

_DEADLY = {"poison": "it ended its worker process", "timeout": "it took longer than item_timeout"}


@verb(run_argument, as_json_option)
def failures(run: str, as_json: bool) -> None:
    """List the failed items of RUN so far, each with the type and the message of its error.

    `espnet3-parallel replay RUN ITEM` runs one of them again.
    """
    found = failed_items(Path(run))
    lines = [
        f"{one['index']}\t{one.get('type') or one.get('cause')}\t{str(one.get('message')).partition(chr(10))[0]}"
        for one in found
    ]
    if as_json:
        lines = [json.dumps(found, indent=2, default=str)]
    say(masked("\n".join(lines or ["no item of this run has failed"])))


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
    run: str, index: str | None, all_failed: bool, debug: bool, profile: bool, trust: bool, as_json: bool
) -> None:
    """Run the item INDEX of RUN again, in this process, with its recorded provider, code and seed.

    Says what is not as it was then; nothing is written to RUN. Exit status: 0 if it returns, 1 if it raises.
    """
    if (index is None) != all_failed:
        raise click.UsageError("give an INDEX, or --all-failed")
    folder, here = Path(os.path.abspath(run)), Path.cwd()
    again = Replay(folder, trust)  # from now on the working directory is the run's
    try:
        indices = (
            [one["index"] for one in failed_items(folder)] if index is None else [index_of(folder, index)]
        )
        told = [
            *(f"not as it was: {line}" for line in again.differences),
            *(f"note: {n}" for n in again.notes),
        ]
        told += [] if indices else ["no item of this run has failed"]
        for line in told:
            say(wrapped(line), sys.stderr if as_json else None)
        faulthandler.enable()  # an item that crashes this process shall say where
        profiles = here if profile else None
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # items may print, too
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
    error = found.error
    now = (
        {"result": f"{found.result!r:.400}"}
        if error is None
        else {"type": type(error).__name__, "message": masked(str(error))}
    )
    return {"index": found.index, "seconds": found.seconds, "same": found.same, **now}


def _one(again: Replay, index: Any, debug: bool, profiles: Path | None) -> Replayed:
    around = _Profiles(index, profiles) if profiles is not None else None
    found = again(index, around)
    then = found.then.failure if found.then is not None else None
    if then is not None:
        tries = "1 try" if then.get("attempts") == 1 else f"{then.get('attempts')} tries"
        how = _DEADLY.get(str(then.get("cause")), f"{then.get('type')}: {then.get('message')}")
        say(wrapped(f"item {index!r} then: failed, {how} ({tries}, {place_of(str(then.get('worker')))})"))
    alike = {True: ", the same as then", False: ", not the same as then", None: ""}[found.same]
    if found.error is None:
        say(f"item {index!r} now: returned in {duration(found.seconds)}{alike}: {found.result!r:.400}")
    else:
        say(f"item {index!r} now: raised in {duration(found.seconds)}{alike}", flush=True)
        shown = found.error.with_traceback(below_ours(found.error.__traceback__))
        trace = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
        say(masked(trace), sys.stderr, end="")
    if around is not None:
        around.print()
    if debug and found.error is not None:
        pdb.post_mortem(found.error.__traceback__)
    return found


class _Profiles(ExitStack):
    def __init__(self, index: Any, folder: Path) -> None:
        super().__init__()
        self._table = cProfile.Profile()
        self._file = folder / f"replay-{re.sub('[^a-zA-Z0-9_.-]+', '_', str(index))[:60]}.svg"
        command = sampler()
        self._flames = FlameGraph(command, self._file) if command is not None else None

    def __enter__(self) -> _Profiles:
        if self._flames is not None:
            self.enter_context(self._flames)
        self.enter_context(self._table)
        return self

    def print(self) -> None:
        pstats.Stats(self._table, stream=sys.stdout).sort_stats("cumulative").print_stats(25)
        if self._flames is None:
            say("no flame graph: it takes py-spy (pip install py-spy)")
        elif self._flames.problem:
            say(wrapped(f"no flame graph by py-spy: {self._flames.problem}"))
        else:
            say(f"a flame graph is in {self._file}")
