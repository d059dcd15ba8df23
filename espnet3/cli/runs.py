"""Verbs for detached runs; each takes a run's folder, from any machine that sees it."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from espnet3.parallel.detached.looking.run import DetachedRun
from espnet3.parallel.detached.states import GRACE, JobState, RunStatus
from espnet3.parallel.errors import ParallelError

_REASONS = 3  # that the scheduler gives for waiting jobs: the most frequent ones are shown
_SHOWN = 10  # shards that need attention and are listed one by one

_run = click.argument("run", type=click.Path(exists=True, file_okay=False))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _explained(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Print an error of this package as a message instead of a traceback."""

    @functools.wraps(verb)
    def explained(**arguments: Any) -> Any:
        try:
            return verb(**arguments)
        except ParallelError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(1)

    return explained


@click.command()
@_run
@_explained
def submit(run: str) -> None:
    """Submit the shards of RUN that were never submitted."""
    _print_status(DetachedRun.open(run).submit())


@click.command()
@_run
@_as_json
@_explained
def status(run: str, as_json: bool) -> None:
    """Say what the jobs of RUN are doing.

    Exit status: 0 all done, 75 still queued or at work, 1 ended with something missing.
    """
    found = DetachedRun.open(run).status()
    _print_status(found, as_json)
    sys.exit(_exit_status(found))


@click.command()
@_run
@click.option("--timeout", type=float, help="Seconds after which to give up waiting.")
@_as_json
@_explained
def wait(run: str, timeout: float | None, as_json: bool) -> None:
    """Wait until no job of RUN is queued or at work; the exit status is that of `status`."""
    found = DetachedRun.open(run).wait(timeout)
    _print_status(found, as_json)
    sys.exit(_exit_status(found))


@click.command()
@_run
@click.option("--failed", is_flag=True, help="Only of shards that ended and are not done.")
@click.option("--follow", "-f", is_flag=True, help="Print until the jobs have ended.")
@_explained
def logs(run: str, failed: bool, follow: bool) -> None:
    """Print what the jobs of RUN printed."""
    opened = DetachedRun.open(run)
    for shard, text in opened.follow(failed) if follow else opened.logs(failed):
        for line in text.splitlines():
            print(f"{shard}: {line}", flush=follow)


@click.command()
@_run
@click.option(
    "--grace", type=float, default=GRACE, show_default=True, help="Seconds for the items in flight."
)
@_explained
def cancel(run: str, grace: float) -> None:
    """End every job of RUN, queued or at work; what has been computed stays."""
    _print_status(DetachedRun.open(run).cancel(grace))


@click.command()
@_run
@click.option("--failed-items", is_flag=True, help="Also run items again that have a recorded failure.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "record"]),
    help="From now on, stop at a failed item, or record it and go on.",
)
@_explained
def retry(run: str, failed_items: bool, on_error: str | None) -> None:
    """Submit again what is missing of RUN, and nothing else."""
    _print_status(DetachedRun.open(run).retry(failed_items, on_error))


@click.command()
@_run
@_explained
def merge(run: str) -> None:
    """Put the outcomes of RUN in order, and prove that none is missing."""
    print(DetachedRun.open(run).merge())


def _exit_status(found: RunStatus) -> int:
    if found.done:
        return 0
    return 75 if found.alive else 1


def _print_status(found: RunStatus, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    print(
        f"{found.run} ({found.env}): {found.ok + found.failed} of {found.items} items, {found.failed} failed"
    )
    for state, count in sorted(found.counts.items(), key=lambda pair: list(JobState).index(pair[0])):
        print(f"{count:6d} {state.value:14} {state.sentence}")
    waiting = Counter(shard.note for shard in found.shards if shard.state is JobState.PENDING and shard.note)
    for note, count in waiting.most_common(_REASONS):
        print(f"{count:6d} of them: {note}")
    fine = (JobState.DONE, JobState.PENDING, JobState.RUNNING, JobState.NEW)
    ended = [shard for shard in found.shards if shard.state not in fine]
    for shard in ended[:_SHOWN]:
        print(
            f"shard {shard.shard} ({shard.job_id or 'no job'}) {shard.state.value}: {shard.note}".rstrip(": ")
        )
    if len(ended) > _SHOWN:
        print(f"... and {len(ended) - _SHOWN} more; --json lists all")
    for note in found.notes:
        print(f"note: {note}")
