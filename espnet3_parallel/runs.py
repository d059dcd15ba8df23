"""Verbs for runs; each takes a run's folder, from any machine that sees it."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from espnet3.parallel.detached.layout import FOLDER, PLAN
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.looking.status import FolderStatus, no_run, watch
from espnet3.parallel.detached.states import GRACE, RunStatus
from espnet3.parallel.ledger.folder import RUN
from espnet3.parallel.messages import counted, masked
from espnet3.parallel.views.outcomes import folder_status
from espnet3_parallel.output import as_json_option, say, verb
from espnet3_parallel.showing import live_line, print_status, status_text


def a_run(run: str) -> str:
    """Refuse a folder without a run as a mistake of usage: its exit status is not that of an incomplete run."""
    with suppress(OSError):  # of a folder that may not be read, the verb says why
        if not any(Path(run, name).exists() for name in (RUN, FOLDER)):
            raise click.BadParameter(no_run(Path(os.path.abspath(run))))
    return run


_folder = click.Path(exists=True, file_okay=False)
run_argument = click.argument("run", type=_folder, callback=lambda ctx, param, run: a_run(run))
trusting = click.option("--trust", is_flag=True, help="Act on RUN even if others own it or may write to it.")


@verb(run_argument, trusting, as_json_option)
def submit(run: str, trust: bool, as_json: bool) -> None:
    """Submit the shards of RUN that were never submitted, because the scheduler refused them, say."""
    print_status(DetachedRun.open(run, trust=trust).submit(), as_json)


@verb(
    run_argument,
    as_json_option,
    click.option(
        "--watch", "watched", is_flag=True, help="Show it again when it changes, until RUN has stopped."
    ),
)
def status(run: str, as_json: bool, watched: bool) -> None:
    """Show the progress of RUN, and the state of its jobs or its driver.

    Exit status: 0 all done, 75 still queued or at work, 1 ended with something missing, 2 not a run.
    """
    if as_json and watched:
        raise click.UsageError("--watch is for people, --json for programs: call `status --json` again")
    look = _look_of(run)
    found = watch(look, seen=_redraw) if watched else look()
    if watched:
        _redraw(found)
    else:
        print_status(found, as_json)
    sys.exit(exit_status(found))


@verb(
    run_argument,
    click.option("--timeout", type=click.FloatRange(0), help="Seconds after which to give up waiting."),
    as_json_option,
)
def wait(run: str, timeout: float | None, as_json: bool) -> None:
    """Wait until RUN has stopped, for scripts: lines on stderr tell how far it is, then its status is printed.

    The exit status is that of `status`. `watch` is for people: a picture of workers and failures, of many runs too.
    """
    found = watch(_look_of(run), timeout, live_line())
    print_status(found, as_json)
    sys.exit(exit_status(found))


def _look_of(run: str) -> Callable[[], RunStatus | FolderStatus]:
    path = Path(os.path.abspath(run))
    if (path / FOLDER / PLAN).exists():
        return DetachedRun.open(path).status
    return functools.partial(folder_status, path)


def _redraw(found: RunStatus | FolderStatus) -> None:
    begin = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    end = "" if sys.stdout.isatty() or not found.alive else "\n"
    print(begin, end="")
    say(f"{status_text(found)}{end}", flush=True)


@verb(
    run_argument,
    click.option("--failed", is_flag=True, help="Only of shards that ended and are not done."),
    click.option("--follow", "-f", is_flag=True, help="Print until the jobs have ended."),
    click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each line of a log."),
)
def logs(run: str, failed: bool, follow: bool, as_json: bool) -> None:
    """Print what the jobs of RUN printed."""
    opened = DetachedRun.open(run)
    for shard, printed in opened.follow(failed) if follow else opened.logs(failed):
        for line in printed.splitlines():
            text = (
                json.dumps({"shard": shard, "line": masked(line)}) if as_json else f"{shard}: {masked(line)}"
            )
            say(text, flush=follow)


@verb(
    run_argument,
    click.option(
        "--grace",
        type=click.FloatRange(0),
        default=GRACE,
        show_default=True,
        help="Seconds for items in flight.",
    ),
    trusting,
    as_json_option,
)
def cancel(run: str, grace: float, trust: bool, as_json: bool) -> None:
    """End every job of RUN, queued or at work; what has been computed stays."""
    print_status(DetachedRun.open(run, trust=trust).cancel(grace), as_json)


@verb(
    run_argument,
    click.option("--failed-items", is_flag=True, help="Also run items again that have a recorded failure."),
    click.option("--on-error", type=click.Choice(["raise", "record"]), help="For failed items from now on."),
    trusting,
    as_json_option,
)
def retry(run: str, failed_items: bool, on_error: str | None, trust: bool, as_json: bool) -> None:
    """Submit again what is missing of RUN, and nothing else."""
    print_status(DetachedRun.open(run, trust=trust).retry(failed_items, on_error), as_json)


@verb(run_argument, trusting)
def merge(run: str, trust: bool) -> None:
    """Put the outcomes of RUN in order, prove that none is missing, and print what the runner's merge returns."""
    opened = DetachedRun.open(run, trust=trust)
    found = opened.merge()
    if found is None:
        status = opened.status()
        failed = f"{status.failed:,} of them failed" if status.failed else "none failed"
        found = f"merged {counted(status.ok + status.failed, 'item')}, {failed}, in {opened.path}"
    say(found)


def exit_status(found: RunStatus | FolderStatus) -> int:
    """Return 0 for a run that is done, 75 for one at work, 1 for one that ended with something missing."""
    if found.done or (found.merged and not found.alive):
        return 0
    return 75 if found.alive else 1
