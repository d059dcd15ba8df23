"""Records commands on a terminal as an animated SVG: `make recording` writes docs/recording.svg, which README shows.

The commands are run for real, on a pseudo-terminal; what they print is drawn as it came, with long waits shortened. The
picture is a strip of frames behind a window that CSS moves: it needs no script, and follows the reader's light or dark.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 104, 22
WIDTH, HEIGHT = 8.4, 18  # of a character, in pixels
TYPING, READING, LONGEST, LAST = (
    0.04,
    1.6,
    0.7,
    5.0,
)  # seconds: a key, after a command, a wait, the last frame
EVERY = 0.12  # seconds between frames, at least
SCRIPT = """\
import time
from espnet3.parallel import run, set_parallel

def recognise(number):
    time.sleep(0.01)  # your model
    if number == 613:
        raise ValueError(f"utterance {number} is empty")
    return f"text {number}"

set_parallel({"env": "local", "n_workers": 2})
run(recognise, range(800), output_dir="runs/texts", on_error="record")
"""
COMMANDS = (
    "cat texts.py",
    "timeout -s KILL 3 python texts.py   # somebody kills it",
    "python texts.py   # the same command goes on with what is left",
    "espnet3-parallel report runs/texts",
)
_HEX = re.compile("[0-9a-f]{6}")
COLOURS = {"red": "r", "green": "g", "brown": "y", "blue": "b", "cyan": "c", "magenta": "m"}
STYLE = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#1c2128}
.w{fill:#fff;stroke:#d5dbe1}.k{font-weight:bold}
.r{fill:#c93c37}.g{fill:#24804f}.y{fill:#8a6100}.b{fill:#2f6fb3}.c{fill:#1b7c83}.m{fill:#8250df}
@media (prefers-color-scheme:dark){text{fill:#e2e7ec}.w{fill:#14181d;stroke:#323a43}
.r{fill:#e5645e}.g{fill:#4cbf8c}.y{fill:#d9a441}.b{fill:#5b9be0}.c{fill:#56b6c2}.m{fill:#b392f0}}
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """What the screen showed from a moment on: a list of (text, style class) for each row."""

    when: float
    rows: tuple[tuple[tuple[str, str], ...], ...]


class Recorder:
    """A terminal, and the frames it has shown."""

    def __init__(self, columns: int = COLUMNS, rows: int = ROWS) -> None:
        self.columns, self.lines = columns, rows
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.now = 0.0
        self.frames: list[Frame] = []

    def show(self, seconds: float) -> None:
        """Keep the screen as it is for so long."""
        rows = tuple(tuple(_runs(self.screen.buffer[row], self.columns)) for row in range(self.lines))
        if self.frames and self.frames[-1].rows == rows:
            pass
        elif self.frames and self.now - self.frames[-1].when < EVERY:  # too short to be seen
            self.frames[-1] = Frame(self.frames[-1].when, rows)
        else:
            self.frames.append(Frame(self.now, rows))
        self.now += seconds

    def type(self, command: str) -> None:
        """Type a command after a prompt."""
        if self.screen.cursor.x:  # whoever was killed has not ended its line
            self.stream.feed(b"\r\n")
        self.stream.feed(b"\x1b[1m$ \x1b[0m")
        for place in range(0, len(command), 3):
            self.stream.feed(command[place : place + 3].encode())
            self.show(3 * TYPING)
        self.stream.feed(b"\r\n")
        self.show(0.2)

    def run(self, command: str, folder: Path, at_most: float | None = None) -> None:
        """Run a command in a folder, and take in what it prints as it comes.

        Args:
            command: For bash.
            folder: Where.
            at_most: Seconds after which it is killed; None: it is waited for.

        Raises:
            RuntimeError: It has failed, and was not to be killed.
        """
        environment = {**os.environ, "TERM": "xterm-256color", "LINES": str(self.lines)}
        environment["COLUMNS"] = str(self.columns)
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "-c", command], environment)  # noqa: S606  one of COMMANDS
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0))
        begin = before = time.monotonic()
        for data in _output(fd):
            passed, before = time.monotonic() - before, time.monotonic()
            self.show(min(LONGEST, passed))
            self.stream.feed(data)
            if at_most is not None and before - begin > at_most:
                break
        self.show(0.0)
        os.close(fd)  # which hangs up on whoever is still there
        _, status = os.waitpid(pid, 0)
        if status and at_most is None and not command.startswith("timeout"):
            raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
        self.show(READING)


def _output(fd: int) -> Iterator[bytes]:
    while True:
        select.select([fd], [], [])
        try:
            data = os.read(fd, 65536)
        except OSError:  # the last one has closed its end
            return
        if not data:
            return
        yield data


def _runs(row: dict[int, pyte.screens.Char], columns: int) -> Iterator[tuple[str, str]]:
    """Yield the stretches of a row that have one style."""
    text, style = "", ""
    for column in range(columns):
        char = row[column]
        colour = f"#{char.fg}" if _HEX.fullmatch(char.fg) else COLOURS.get(char.fg.removeprefix("bright"), "")
        found = " ".join(filter(None, [colour, "k" if char.bold else ""]))
        if found != style and text:
            yield text, style
            text = ""
        style = found
        text += char.data
    if text.strip():
        yield text.rstrip(), style


def _attributes(style: str) -> str:
    """Return a style's attributes: classes, and a colour of the terminal's 256 as it is."""
    words = style.split()
    classes = " ".join(word for word in words if not word.startswith("#"))
    colours = [word for word in words if word.startswith("#")]
    return (f' class="{classes}"' if classes else "") + "".join(f' style="fill:{one}"' for one in colours)


def svg(
    frames: list[Frame],
    seconds: float,
    columns: int = COLUMNS,
    rows: int = ROWS,
    commands: Sequence[str] = COMMANDS,
) -> str:
    """Return the picture: the frames one under the other, moved past a window."""
    width, height = columns * WIDTH + 24, rows * HEIGHT + 24
    begin = frames[0].when
    steps = "".join(
        f"{100 * (frame.when - begin) / seconds:.3f}%{{transform:translateY(-{place * height:.0f}px)}}"
        for place, frame in enumerate(frames)
    )
    drawn = []
    for place, frame in enumerate(frames):
        for number, runs in enumerate(frame.rows):
            x, y = 12.0, place * height + 12 + (number + 0.8) * HEIGHT
            for text, style in runs:
                if text.strip():
                    named = _attributes(style)
                    drawn.append(f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>')
                x += len(text) * WIDTH
    label = "A terminal: " + "; ".join(commands)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}"><style>{STYLE}.f{{animation:f {seconds:.1f}s infinite step-end}}'
        f"@keyframes f{{{steps}}}</style>"
        f'<rect class="w" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>'
        f'<g class="f">{"".join(drawn)}</g></svg>\n'
    )


def main() -> None:
    """Record the commands in an empty folder, and write the picture."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "texts.py").write_text(SCRIPT, encoding="utf-8")
        for command in COMMANDS:
            recorder.type(command)
            recorder.run(command, Path(folder))
    recorder.show(LAST)
    target = ROOT / "docs/recording.svg"
    target.write_text(svg(recorder.frames, recorder.now), encoding="utf-8")
    print(f"wrote {target} ({len(recorder.frames)} frames, {recorder.now:.0f} s)")


if __name__ == "__main__":
    main()
