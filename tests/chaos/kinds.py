"""The table of disturbances. Each is done to one start of the program; a row and a function add one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.ledger.split import SESSION, SPLIT
from tests.chaos.start import Start, kill

if TYPE_CHECKING:
    from tests.chaos.rounds import Round

ALL, ONE, NONE = "all", "one", "none"  # how many workers lose what they hold


@dataclass(frozen=True)
class Kind:
    name: str
    do: Callable[[Round], Start]  # starts the program, disturbs it and sees it end as it should
    lose: str = ALL  # whose items in flight are computed again
    # to the folder afterwards; how many more items that may cost
    damage: Callable[[Round], int] | None = None


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


# --- what happens to the files of a run folder while no driver is at work in it --------------------

_USERS = ("part.txt", "all.txt", "all.part")  # written by the runner's own hooks: nobody can check them
_LOST_LINES = 2  # a changed line end makes one damaged line of two


def files(folder: Path, *endings: str) -> list[Path]:
    """Return the run's own files with these endings, in a fixed order; leases apart."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name.endswith(endings or "")]
    inside = [p for p in found if "old." not in p.relative_to(folder).parts[0]]
    return sorted(p for p in inside if p.name not in _USERS and "lease." not in p.name and p.stat().st_size)


def torn_line(r: Round) -> int:
    """Cut a file inside a line, or put a torn line into it."""
    candidates = files(r.folder, ".jsonl")
    if not candidates:
        return 0
    file = r.draw.choice(candidates)
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    at = r.draw.randrange(len(lines))
    line = lines[at]
    torn = line[: r.draw.randrange(1, max(2, len(line) - 1))]
    how = r.draw.choice(["cut", "put in", "noise"])
    if how == "cut":  # as a power failure does
        file.write_bytes(data[: r.draw.randrange(len(data) - len(lines[-1]), len(data))])
    elif how == "put in":
        file.write_bytes(b"".join([*lines[:at], torn, b"\n", *lines[at:]]))
    else:
        file.write_bytes(
            b"".join([*lines[:at], r.draw.randbytes(40).replace(b"\n", b" ") + b"\n", *lines[at:]])
        )
    r.say(f"{how}: {file.relative_to(r.folder)}, line {at + 1}")
    return r.unit


def changed_byte(r: Round) -> int:
    candidates = files(r.folder)
    if not candidates:
        return 0
    file = r.draw.choice(candidates)
    data = bytearray(file.read_bytes())
    at = r.draw.randrange(len(data))
    data[at] ^= 1 << r.draw.randrange(8)
    file.write_bytes(data)
    r.say(f"changed byte {at} of {file.relative_to(r.folder)}")
    if file.name == "run.json":  # it may say another run now, or no longer be JSON
        r.knock(r'resume="force"', may_run=True)
    return _LOST_LINES * r.unit


def truncated_run(r: Round) -> int:
    """Cut run.json; the next start is refused and says what to do, and that is done."""
    file = r.folder / "run.json"
    if not file.exists():
        return 0
    data = file.read_bytes()
    file.write_bytes(data[: r.draw.randrange(len(data) - 2)])
    r.say(f"cut {file.name}")
    r.knock(r'run\.json is damaged: .*resume="force" takes over')
    return 0


def no_done_mark(r: Round) -> int:
    """Delete a mark of something that was finished."""
    marks = files(r.folder, "done")
    if not marks:
        return 0
    mark = r.draw.choice(marks)
    mark.unlink()
    r.say(f"deleted {mark.relative_to(r.folder)}")
    return r.unit if r.variant == "files" else 0


def kind_of_sessions(variant: str) -> str:
    """Return what the folders of a run's sessions are called."""
    return SESSION if variant == "files" else SPLIT


KINDS = (
    Kind("SIGKILL driver", _killed),
    Kind("SIGKILL worker", _survives(Start.workers), lose=ONE),
    Kind("SIGKILL fork server", _survives(Start.server), lose=NONE),
    Kind(
        "SIGKILL server, then driver",
        _signalled(lambda s: kill([*s.server(), *s.driver()]), (-signal.SIGKILL,)),
    ),
    Kind(
        "SIGKILL all processes",
        _signalled(lambda s: kill([*s.workers(), *s.server(), *s.driver()]), (-signal.SIGKILL,)),
    ),
    Kind("SIGTERM driver", _signalled(lambda s: kill(s.driver(), signal.SIGTERM), (-signal.SIGTERM,))),
    Kind("SIGINT group", _signalled(lambda s: s.signal_group(signal.SIGINT), (-signal.SIGINT, 130))),
    Kind("SIGKILL + torn line", _killed, damage=torn_line),
    Kind("SIGKILL + changed byte", _killed, damage=changed_byte),
    Kind("SIGKILL + truncated run.json", _killed, damage=truncated_run),
    Kind("SIGKILL + no done mark", _killed, damage=no_done_mark),
)
