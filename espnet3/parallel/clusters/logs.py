"""The log files of a job, found by its id, because each scheduler names them differently."""

from __future__ import annotations

import re
from pathlib import Path

_BYTES = 4000
_LINES = 20


def log_tail(folder: str | None, element: tuple[str, str]) -> str:
    """Return the last lines a job wrote and the file that holds them; "" if there are none."""
    if folder is None:
        return ""
    job, index = element
    its_own = re.compile(rf"(?<!\d){re.escape(job)}" + (rf"\D{{1,2}}{index}" if index else "") + r"(?!\d)")
    texts = []
    for path in sorted(Path(folder).glob("*")):
        if not path.is_file() or not its_own.search(path.name) or path.suffix == ".log":
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _BYTES))
            tail = file.read().decode(errors="replace").strip().splitlines()[-_LINES:]
        if tail:
            texts.append("\n".join([f"the end of {path}:", *(f"    {line}" for line in tail)]))
    return "\n".join(texts)
