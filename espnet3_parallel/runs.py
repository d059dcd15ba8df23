"""Verbs for runs; each takes a run's folder, from any machine that sees it."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.looking.status import FolderStatus, watch
from espnet3.parallel.detached.states import GRACE, JobState, RunStatus
from espnet3.parallel.messages import counted, duration, masked
from espnet3.parallel.views.facts import folder_status
from espnet3.parallel.views.live import LiveFacts, Rate, is_detached
from espnet3_parallel.output import a_run, as_json_option, say, verb, wrapped

_REASONS = 3  # for waiting or unstarted jobs: the most frequent ones are shown
_SHOWN = 10  # shards that need attention and are listed one by one
_FINE = (JobState.DONE, JobState.PENDING, JobState.RUNNING, JobState.NEW, JobState.NOT_STARTED)

run_argument = click.argument("run", type=click.Path(exists=True), callback=lambda _, __, run: a_run(run))
trusting = click.option("--trust", is_flag=True, help="Act on RUN even if others own it or may write to it.")


@verb(run_argument, trusting, as_json_option)
def submit(run: Path, trust: bool, as_json: bool) -> None:
    """Submit the shards of RUN that were never submitted, because the scheduler refused them, say."""
    _print_status(DetachedRun.open(run, trust=trust).submit(), as_json)


@verb(
    run_argument,
    as_json_option,
    click.option("--watch", "watched", is_flag=True, help="Show it again when it changes, until RUN stops."),
)
def status(run: Path, as_json: bool, watched: bool) -> None:
    """Show the progress of RUN, and the state of its jobs or its driver.

    Exit status: 0 all done, 75 still queued or at work, 1 ended with something missing, 2 not a run.
    """
    if as_json and watched:
        raise click.UsageError("--watch is for people, --json for programs: call `status --json` again")
    look = _look_of(run)
    found = watch(look, seen=_redraw) if watched else look()
    if watched:
        click.clear()
    _print_status(found, as_json)
    sys.exit(exit_status(found))


@verb(
    run_argument,
    click.option("--timeout", type=click.FloatRange(0), help="Seconds after which to give up waiting."),
    as_json_option,
)
def wait(run: Path, timeout: float | None, as_json: bool) -> None:
    """Wait until RUN has stopped, for scripts: lines on stderr tell how far it is, then its status is printed.

    The exit status is that of `status`. `watch` is for people: a picture of workers and failures, of many runs too.
    """
    found = watch(_look_of(run), timeout, _live_line())
    _print_status(found, as_json)
    sys.exit(exit_status(found))


def _look_of(run: Path) -> Callable[[], RunStatus | FolderStatus]:
    return DetachedRun.open(run).status if is_detached(run) else functools.partial(folder_status, run)


def _redraw(found: RunStatus | FolderStatus) -> None:
    click.clear()  # a terminal; elsewhere an empty line stands between two
    _print_status(found, as_json=False)
    print("" if sys.stdout.isatty() else "\n", end="", flush=True)


@verb(
    run_argument,
    click.option("--failed", is_flag=True, help="Only of shards that ended and are not done."),
    click.option("--follow", "-f", is_flag=True, help="Print until the jobs have ended."),
    click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each line of a log."),
)
def logs(run: Path, failed: bool, follow: bool, as_json: bool) -> None:
    """Print what the jobs of RUN printed."""
    opened = DetachedRun.open(run)
    for shard, printed in opened.follow(failed) if follow else opened.logs(failed):
        for line in map(masked, printed.splitlines()):
            say(json.dumps({"shard": shard, "line": line}) if as_json else f"{shard}: {line}", flush=follow)


@verb(
    run_argument,
    click.option("--grace", type=click.FloatRange(0), default=GRACE, help="Seconds for items in flight."),
    trusting,
    as_json_option,
)
def cancel(run: Path, grace: float, trust: bool, as_json: bool) -> None:
    """End every job of RUN, queued or at work; what has been computed stays."""
    _print_status(DetachedRun.open(run, trust=trust).cancel(grace), as_json)


@verb(
    run_argument,
    click.option("--failed-items", is_flag=True, help="Also run items again that have a recorded failure."),
    click.option("--on-error", type=click.Choice(["raise", "record"]), help="For failed items from now on."),
    trusting,
    as_json_option,
)
def retry(run: Path, failed_items: bool, on_error: str | None, trust: bool, as_json: bool) -> None:
    """Submit again what is missing of RUN, and nothing else."""
    _print_status(DetachedRun.open(run, trust=trust).retry(failed_items, on_error), as_json)


@verb(run_argument, trusting)
def merge(run: Path, trust: bool) -> None:
    """Put the outcomes of RUN in order, prove that none is missing, and print what the runner's merge returns."""
    opened = DetachedRun.open(run, trust=trust)
    found = opened.merge()
    if found is None:
        status = opened.status()
        failed = f"{status.failed:,} of them failed" if status.failed else "none failed"
        found = f"merged {counted(status.ok + status.failed, 'item')}, {failed}, in {opened.path}"
    say(found)


@verb(
    run_argument,
    click.option("-o", "--output", metavar="FILE", help="Where to; - is standard output [report.html]."),
    click.option("--format", "kind", type=click.Choice(["html", "json"]), default="html"),
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
)
def report(run: Path, output: str | None, kind: str, as_json: bool) -> None:
    """Write a report of RUN as one HTML page that needs no network; JSON goes to standard output.

    RUN may be running, dead or finished; the report does not change it.
    """
    from espnet3.parallel.views.facts import read_facts
    from espnet3.parallel.views.page import conclusions, page_of

    facts, html = read_facts(run), kind == "html" and not as_json
    if html:
        text = page_of(facts)
    else:
        times = {"began": facts.began, "ended": facts.ended, "worked": facts.worked}
        said = {**asdict(facts), **times, "left": facts.left, "conclusions": conclusions(facts)}
        text = json.dumps(said, indent=2, default=str) + "\n"
    output = output or ("report.html" if html else "-")
    if output == "-":
        encoding = sys.stdout.encoding or "utf-8"  # what a terminal of ASCII cannot show, a page can name
        say(text.encode(encoding, "xmlcharrefreplace").decode(encoding), end="")
        return
    try:
        size = Path(output).write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise click.BadParameter(f"{output} cannot be written: {error.strerror}", param_hint="-o") from error
    say(f"wrote {output} ({size / 1e3:,.0f} kB)")


def exit_status(found: RunStatus | FolderStatus) -> int:
    """Return 0 for a run that is done, 75 for one at work, 1 for one that ended with something missing."""
    if found.done or (found.merged and not found.alive):
        return 0
    return 75 if found.alive else 1


def _print_status(found: RunStatus | FolderStatus, as_json: bool) -> None:
    if as_json:
        say(json.dumps(found.to_json(), indent=2))
        return
    if isinstance(found, RunStatus):
        lines = _of_jobs(found)
    else:
        if found.alive:
            end = f"a driver is at work: {found.driver}"
        elif found.merged:
            end = "complete, and merged"
        else:
            left = found.items - found.ok - found.failed
            rest = f"computes the {left:,} that are left" if left else "merges it"
            end = f"no driver is at work: the same call of the runner {rest}"
        lines = [wrapped(f"{found.run}: {counts_of(found)}"), wrapped(end)]
    say("\n".join([*lines, *(wrapped(f"note: {note}") for note in found.notes)]))


def _of_jobs(found: RunStatus) -> list[str]:
    lines = [wrapped(f"{found.run} ({found.env}): {counts_of(found)}")]
    for state, count in sorted(found.counts.items(), key=lambda pair: list(JobState).index(pair[0])):
        lines.append(wrapped(f"{count:6d} {_word(state):14} {state.sentence}", 22))
        if state in (JobState.PENDING, JobState.NOT_STARTED):
            reasons = Counter(shard.note for shard in found.shards if shard.state is state and shard.note)
            lines += [wrapped(f"{n:6d} of them: {note}", 7) for note, n in reasons.most_common(_REASONS)]
    ended = [shard for shard in found.shards if shard.state not in _FINE]
    for shard in ended[:_SHOWN]:
        text = f"shard {shard.shard} ({shard.job_id or 'no job'}) {_word(shard.state)}: {shard.note}"
        lines.append(wrapped(text.rstrip(": ")))
    if len(ended) > _SHOWN:
        lines.append(f"... and {len(ended) - _SHOWN:,} more; --json lists all")
    return lines


def _word(state: JobState) -> str:
    return str(state.value).replace("_", " ")


def counts_of(found: RunStatus | FolderStatus) -> str:
    """Return the progress of a run."""
    return f"{found.ok + found.failed:,} of {found.items:,} items, {found.failed:,} failed"


def _live_line() -> Callable[[RunStatus | FolderStatus], None]:
    begin, due, rate = time.monotonic(), 0.0, Rate()

    def show(found: RunStatus | FolderStatus) -> None:
        nonlocal due
        now, done = time.monotonic(), found.ok + found.failed
        speed = rate(now, done)
        if now >= due:
            text = f"{counts_of(found)}{pace(speed, (found.items - done) / speed if speed else None)}"
            if isinstance(found, RunStatus):
                jobs = ", ".join(f"{n} {_word(state)}" for state, n in found.counts.items() if state.alive)
                text += f"; jobs: {jobs}"
            say(text, sys.stderr, flush=True)
            due = now + (10.0 if now - begin < 60.0 else 60.0)

    return show


def plain_line(facts: LiveFacts, folder: Path) -> str:
    """Return one line about a run, named by its path below a folder, for `watch` without a terminal."""
    status, run = facts.status, Path(facts.status.run)
    name = run.name if run == folder else run.relative_to(folder)
    end = "" if status.alive else f", {state_of(facts)}"
    causes = "".join(f"; {group.count:,} x {group.text:.100}" for group in facts.failures[:1])
    return f"{name}: {counts_of(status)}{pace(facts.rate, facts.seconds_left)}{end}{causes}"


def state_of(facts: LiveFacts) -> str:
    """Return in a few words how a run is."""
    if facts.status.alive:
        return "at work"
    return "complete" if facts.status.done or facts.status.merged else "no process works on it"


def pace(rate: float, left: float | None) -> str:
    """Return the rate and the seconds that are left, where they are known, behind a comma."""
    return f"{f', {rate:,.1f} items/s' if rate else ''}{'' if left is None else f', {duration(left)} left'}"
