"""The table of disturbances. Each is done to one start of the program; a row and a function add one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import damage
from tests.chaos.start import Start, kill

if TYPE_CHECKING:
    from tests.chaos.rounds import Round

ALL, ONE, NONE = "all", "one", "none"  # how many workers lose what they hold


@dataclass(frozen=True)
class Kind:
    """One way to disturb a run.

    Attributes:
        name: For the table.
        do: Starts the program, disturbs it and sees it end as it should.
        lose: Whose items in flight are computed again.
        damage: Done to the folder afterwards; returns how many more items that may cost.
        pool: Makes sense with worker processes only.
    """

    name: str
    do: Callable[[Round], Start]
    lose: str = ALL
    damage: Callable[[Round], int] | None = None
    pool: bool = False


def _signalled(send: Callable[[Start], None], codes: tuple[int, ...]) -> Callable[[Round], Start]:
    """Return what sends a signal at a drawn moment, after which the driver ends in one of these ways."""

    def do(r: Round) -> Start:
        start = r.start()
        if r.wait_for_a_moment(start):
            send(start)
        code = start.end()
        r.expect(code in codes or (code == 0 and start.finished()), start, f"exit code {code}")
        return start

    return do


def _everything(start: Start) -> None:
    kill([*start.workers(), *start.server(), *start.driver()])


def _server_and_driver(start: Start) -> None:
    kill([*start.server(), *start.driver()])


_killed = _signalled(lambda start: kill(start.driver()), (-signal.SIGKILL,))


def _survives(whom: Callable[[Start], list[int]]) -> Callable[[Round], Start]:
    """Return what kills one process of a run that goes on and ends well."""

    def do(r: Round) -> Start:
        start = r.start(pool=True)
        if r.wait_for_a_moment(start):
            kill(sorted(whom(start))[:1])
        ended_well = start.end() == 0 and start.finished()
        # before the first workers are up there is nothing to go on with
        no_server = "the server that forks local workers is gone" in start.text and not start.reported.items
        r.expect(ended_well or no_server, start, "it did not end well")
        return start

    return do


def _full_disk(r: Round) -> Start:
    """Fill the disk at a drawn moment, see the run stop for that reason, free it again."""
    # the limit is on its log as well, which must hold the traceback
    start = r.start() if r.disk else r.start(file_limit=r.draw.randrange(8000, 20_000))
    filler = r.folder.parent / "filler"
    if r.disk and r.wait_for_a_moment(start):
        _fill(filler)
    code = start.end()
    filler.unlink(missing_ok=True)
    said = "the disk is full" in start.text or ("ItemError" in start.text and "No space left" in start.text)
    said = said or (not r.disk and "File too large" in start.text)
    r.expect((code == 1 and said) or (code == 0 and start.finished()), start, f"exit code {code}")
    return start


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    stream.write(b"x" * size)
            except OSError:
                continue


def _read_only(r: Round) -> Start:
    """Take away the right to write, before the start or in the middle, and give it back."""
    before = r.draw.random() < 0.5
    r.folder.mkdir(exist_ok=True, mode=0o700)
    if before:
        _chmod(r.folder, 0o500, 0o400)
    try:
        start = r.start(plain_permissions=True)
        if not before and r.wait_for_a_moment(start):
            _chmod(r.folder, 0o500, 0o400)
        code = start.end()
    finally:
        _chmod(r.folder, 0o700, 0o600)
    said = "not writable" in start.text or ("ItemError" in start.text and "Permission denied" in start.text)
    r.expect((code == 1 and said) or (code == 0 and start.finished()), start, f"exit code {code}")
    if before:
        r.expect(code == 1 and not start.reported.items, start, "it began, and could not have written")
    return start


def _chmod(folder: Path, folders: int, files: int) -> None:
    folder.chmod(0o700)
    for parent, _, names in os.walk(folder):
        for name in names:
            Path(parent, name).chmod(files)
    for parent, _, _ in os.walk(folder, topdown=False):
        Path(parent).chmod(folders)


def _second_driver(r: Round) -> Start:
    """Start another driver beside the first: it is refused, and the first does not notice."""
    start = r.start()
    if r.wait_for_a_moment(start):
        second = r.start()
        code = second.end()
        refused = code == 1 and "is in use: process" in second.text and not second.reported.items
        r.expect(refused or (code == 0 and start.finished()), second, f"exit code {code}")
    r.expect(start.end() == 0, start, "it did not end well")
    return start


KINDS = (
    Kind("SIGKILL driver", _killed),
    Kind("SIGKILL worker", _survives(Start.workers), lose=ONE, pool=True),
    Kind("SIGKILL fork server", _survives(Start.server), lose=NONE, pool=True),
    Kind("SIGKILL server, then driver", _signalled(_server_and_driver, (-signal.SIGKILL,)), pool=True),
    Kind("SIGKILL all processes", _signalled(_everything, (-signal.SIGKILL,)), pool=True),
    Kind("SIGTERM driver", _signalled(lambda s: kill(s.driver(), signal.SIGTERM), (-signal.SIGTERM,))),
    Kind("SIGINT group", _signalled(lambda s: s.signal_group(signal.SIGINT), (-signal.SIGINT, 130))),
    Kind("full disk", _full_disk),
    Kind("read-only folder", _read_only),
    Kind("second driver", _second_driver, lose=NONE),
    Kind("SIGKILL + torn line", _killed, damage=damage.torn_line),
    Kind("SIGKILL + changed byte", _killed, damage=damage.changed_byte),
    Kind("SIGKILL + truncated run.json", _killed, damage=damage.truncated_run),
    Kind("SIGKILL + no done mark", _killed, damage=damage.no_done_mark),
    Kind("SIGKILL + clock jump", _killed, damage=damage.clock_jump),
)
