"""Copied beside an attack's program, which imports it: writes how the program ended to a file that the judge reads."""

import faulthandler
import json
import linecache
import re
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

MISSING = object()
_HOME = Path(__file__).resolve().parent  # now: a program may delete its working directory
_stacks = (_HOME / "stacks").open("w")
faulthandler.register(signal.SIGUSR1, _stacks)  # what the judge asks for when a program hangs


def _write(verdict: dict[str, Any]) -> None:
    part = _HOME / "verdict.part"
    part.write_text(json.dumps(verdict))
    part.rename(_HOME / "verdict.json")


def answer(value: Any, right: Any = MISSING) -> None:
    """Write that the program ended with an answer, and what a plain loop says it must be."""
    expected = None if right is MISSING else canonical(right)
    _write({"answer": canonical(value), "right": expected})


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write that nobody caught an exception: of which type, in which words, and who raised it."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace else ""
    line = linecache.getline(file, trace.tb_lineno) if trace else ""
    try:
        message = str(error)
    except BaseException as broken:  # some attacks raise what has no text
        message = f"<no text: {type(broken).__name__}>"
    _write(
        {
            "error": kind.__name__,
            "bases": [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__],
            "message": message[:5000].encode(errors="backslashreplace").decode(),
            "notes": [str(note) for note in getattr(error, "__notes__", ())],
            "file": file,
            "line": trace.tb_lineno if trace else 0,
            "code": line.strip(),
        }
    )
    if sys.stderr is not None:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _failed


def canonical(value: Any) -> str:
    """Return a text that is the same for equal answers in every process: numbers and texts, in lists."""
    return re.sub("0x[0-9a-f]+", "0x", repr(value))
