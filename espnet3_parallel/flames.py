"""A flame graph of what this process does for a while, by py-spy where that is installed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_NAME = "py-spy"
_RATE = 500  # samples a second
_BEGUN = "Sampling process"  # py-spy prints it once it samples
_WRONG = "Error: "
_UNSEEN = "No stack counts found"
_PATIENCE = 60.0  # seconds for it to write the file
_SET_PTRACER = 0x59616D61  # prctl(2): the processes that may look into this one, where the kernel asks (Yama)
_ANY = -1  # of the user's own


def sampler() -> str | None:
    """Return the command of py-spy: of this environment, or on the path; None where there is none."""
    return shutil.which(_NAME, path=str(Path(sys.executable).parent)) or shutil.which(_NAME)


def _let_look_in(process: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)  # fails where it is not asked for


class FlameGraph:
    """Samples this process from entering to leaving, and writes an SVG file, or `problem`."""

    def __init__(self, command: str, file: Path) -> None:
        self.problem = ""  # why there is no file
        self._file = file
        self._said: list[str] = []
        self._command = [command, "record", f"--pid={os.getpid()}", f"--rate={_RATE}", f"--output={file}"]

    def __enter__(self) -> FlameGraph:
        _let_look_in(_ANY)
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._spy = subprocess.Popen(self._command, text=True, **streams)
        assert self._spy.stdout is not None
        for line in self._spy.stdout:
            self._said.append(line.strip())
            if _BEGUN in line:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self._spy.send_signal(signal.SIGINT)  # it writes what it has seen
        try:
            more, _ = self._spy.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._spy.kill()
            more, _ = self._spy.communicate()
        _let_look_in(0)
        self._said += more.splitlines()
        if self._spy.returncode:
            self._file.unlink(missing_ok=True)  # it may hold that nothing was seen
            why = next((line for line in self._said if line.startswith(_WRONG)), "")
            self.problem = why.removeprefix(_WRONG) or f"it ended with exit status {self._spy.returncode}"
            # the latter where it had not begun to listen for that
            if _UNSEEN in why or self._spy.returncode == -signal.SIGINT:
                self.problem = "it was over before anything was seen of it"
