"""What happens to the files of a run folder while no driver is at work in it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.ledger.split import SESSION, SPLIT

if TYPE_CHECKING:
    from tests.chaos.rounds import Round

_JUMPS = (-20 * 365 * 86400.0, -3600.0, 3600.0, 400 * 86400.0)  # seconds: a clock that was wrong until now
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
    """Change one byte of any file."""
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


def clock_jump(r: Round) -> int:
    """Date all files in the future or long ago, and the lease as well: that of a host that is gone."""
    leases = sorted(r.folder.glob("lease.*.json"), key=lambda p: int(p.name.split(".")[1]))
    if leases:
        said = json.loads(leases[-1].read_bytes())
        said.update(host="elsewhere", boot_id="another", beat=0.05)
        leases[-1].write_text(json.dumps(said))
    jump = r.draw.choice(_JUMPS)
    then = time.time() + jump
    for path in [r.folder, *r.folder.rglob("*")]:
        os.utime(path, (then, then))
    r.say(f"dated by {jump:g} s")
    return 0


def kind_of_sessions(variant: str) -> str:
    """Return what the folders of a run's sessions are called."""
    return SESSION if variant == "files" else SPLIT
