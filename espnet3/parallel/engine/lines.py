"""A stream that passes on whole lines: output of several threads and processes stays apart, also beside a bar."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class LineStream:
    """Stands in for `sys.stdout` or `sys.stderr`; all that it does not do itself, the stream does.

    `emit` takes whole lines, with their ends, and writes them; False where it does not want them just now, and the
    stream gets the text as it is.
    """

    def __init__(self, stream: Any, emit: Callable[[Any, str], bool]) -> None:
        self.stream = stream
        self._emit = emit
        self._begun: dict[int, str] = {}  # lines that have not ended, by thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Pass on the lines that have ended."""
        me = threading.get_ident()
        whole, end, begun = (self._begun.pop(me, "") + text).rpartition("\n")
        if begun:
            self._begun[me] = begun
        if end and not self._emit(self.stream, whole + end):
            self.stream.write(whole + end)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def pass_on(self) -> None:
        """Pass on what this thread has begun, as a line."""
        if threading.get_ident() in self._begun:
            self.write("\n")

    def pass_on_all(self) -> None:
        """Pass on what any thread has begun, as lines."""
        while self._begun:
            _, begun = self._begun.popitem()
            self._emit(self.stream, f"{begun}\n")
