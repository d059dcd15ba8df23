"""`espnet3-parallel watch`: a run, or all runs of a folder, on a terminal as they go on."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from espnet3.parallel.backends.backend import pip_line
from espnet3.parallel.errors import MissingPackageError
from espnet3.parallel.ledger.folder import RUN
from espnet3.parallel.views.live import LiveFacts, Watcher, is_detached
from espnet3_parallel.output import no_run, say, verb
from espnet3_parallel.runs import exit_status, plain_line

_DEPTH = ("*/", "*/*/")  # levels at which runs are looked for
_KEYS = 0.25  # seconds of a wait for a key, and between two pictures
_LEAVE = (b"q", b"\x03", b"\x1b", b"")  # q, Ctrl-C, Escape, the end of the input
_LINE = 10.0  # seconds between two lines where there is no terminal


@verb(
    click.argument("run", type=click.Path(exists=True), metavar="RUN|FOLDER"),
    click.option("--json", "as_json", is_flag=True, help="Print what would be shown now as JSON, and leave."),
)
def watch(run: str, as_json: bool) -> None:
    """Show RUN, or all runs in FOLDER, to a person until they have stopped.

    On a terminal: bar, rate, time left, workers, failures; q leaves, and the run goes on. Elsewhere there is a line
    every ten seconds. Exit status: that of `status`; a script uses `wait`.
    """
    folder = Path(os.path.abspath(run))
    if not runs_below(folder):
        raise click.BadParameter(no_run(folder), param_hint="RUN|FOLDER")
    watchers: dict[Path, Watcher] = {}
    if as_json:
        facts = [one.to_json() for one in look(folder, watchers)]
        say(json.dumps(facts[0] if list(watchers) == [folder] else facts, indent=2))
        return
    last = _on_terminal(folder, watchers) if sys.stdout.isatty() else _in_lines(folder, watchers)
    sys.exit(max((exit_status(facts.status) for facts in last), default=0))


def look(folder: Path, watchers: dict[Path, Watcher]) -> list[LiveFacts]:
    """Return how each run of a folder is; a run that is new there gets a watcher."""
    for run in runs_below(folder):
        if run not in watchers:
            watchers[run] = Watcher(run)
    return [watcher.look() for watcher in watchers.values()]


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, down to two levels; only itself where it is one."""
    if (folder / RUN).exists() or is_detached(folder):
        return [folder]
    found = {file.parent for depth in _DEPTH for file in folder.glob(f"{depth}{RUN}")}
    return sorted(run for run in found if not run.name.startswith("old."))


def _pause(begin: float) -> float:
    return min(10.0, max(1.0, 0.05 * (time.monotonic() - begin)))  # seconds between two looks


def _in_lines(folder: Path, watchers: dict[Path, Watcher]) -> Sequence[LiveFacts]:
    begin, said = time.monotonic(), -_LINE
    while True:
        found = look(folder, watchers)
        alive = any(facts.status.alive for facts in found)
        if not alive or time.monotonic() - said >= _LINE:
            said = time.monotonic()
            for facts in found:
                say(plain_line(facts, folder), flush=True)
        if not alive:
            return found
        time.sleep(_pause(begin))  # files on a shared disk send no event


def _on_terminal(folder: Path, watchers: dict[Path, Watcher]) -> Sequence[LiveFacts]:
    if find_spec("rich") is None:
        without = "without it `espnet3-parallel watch RUN | cat` prints lines"
        raise MissingPackageError(f"rich is not installed: {pip_line('report')}; {without}", name="rich")
    from rich.console import Console
    from rich.live import Live

    from espnet3_parallel.drawing import drawn

    console, begin, found = Console(), time.monotonic(), look(folder, watchers)
    with _keys() as keys, Live(console=console, auto_refresh=False) as live:
        due = begin + _pause(begin)
        while True:
            live.update(drawn(found, folder, time.time(), console.height), refresh=True)
            if not any(facts.status.alive for facts in found) or keys():
                return found
            if time.monotonic() >= due:
                found = look(folder, watchers)
                due = time.monotonic() + _pause(begin)


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    if not sys.stdin.isatty():
        yield lambda: bool(select.select([], [], [], _KEYS)[0])
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda: bool(select.select([fd], [], [], _KEYS)[0]) and os.read(fd, 64).lower() in _LEAVE
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
