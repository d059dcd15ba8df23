"""A script on a terminal: what it shows there, read while it runs."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

from tests.parallel.contract.helpers import clean_environment

GUARD = 600  # seconds after which what is awaited does not come
COLUMNS = 160


class Terminal:
    """The screen of a running script."""

    def __init__(self, fd, process):
        self.shown = ""
        self.process = process
        self._fd = fd
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def wait_for(self, text):
        end = time.monotonic() + GUARD
        while text not in self.shown:
            assert self._read(end - time.monotonic()), f"never shown: {text!r}\n{self.shown}"

    def finish(self):
        """Read to the end, and return all that was shown."""
        end = time.monotonic() + GUARD
        while self._read(end - time.monotonic()):
            pass
        assert self.process.wait(GUARD) == 0, self.shown
        return self.shown

    def screen(self):
        """Return the lines as they stand on the screen at the end: what was written over is gone."""
        lines = [[]]
        column = 0
        for token in re.findall(r"\x1b\[[A-Z]|[\s\S]", self.shown):
            if token == "\n":
                lines.append([])
                column = 0
            elif token == "\r":
                column = 0
            elif token == "\x1b[K":
                del lines[-1][column:]
            elif token == "\x1b[A":
                raise AssertionError("the bar is not on the last line")
            else:
                lines[-1][column : column + 1] = token
                column += 1
        return ["".join(line).rstrip() for line in lines]

    def _read(self, seconds):
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # the script has ended
            return False
        self.shown += self._decoder.decode(data)
        return bool(data)


@contextmanager
def on_a_terminal(folder, code, **environment):
    """Save code as a script and run it on a terminal of its own; yield the `Terminal`."""
    path = Path(folder) / "script.py"
    path.write_text(textwrap.dedent(code))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # "\n" stays "\n"
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
