"""What an attack is: a small program, what it may lawfully end with, and how long it may take."""

from dataclasses import dataclass

HEAD = "import sys\nW = int(sys.argv[1])  # workers\n"
COMMON = """
import os, sys, threading, time
from pathlib import Path
from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client, parallel_for, parallel_map, set_parallel
class P(EnvironmentProvider):
    def build_env_local(self): return {}
class R(BaseRunner):
    @staticmethod
    def forward(idx): return f(idx)
def note(i):
    with open("calls", "a") as calls: calls.write(f"{i}\\n")
home = os.getcwd()
"""
LARGE = {"np": "numpy", "pd": "pandas"}  # imported where a program uses them
PARALLEL = 'set_parallel({"env": "local", "n_workers": W})\n'


@dataclass(frozen=True, slots=True)
class Case:
    """One attack: its program sets `answer`, and `right` where it knows that, or ends with an exception."""

    name: str  # its family and how it was drawn
    text: str  # the program; `W` is the number of workers
    uses: str = ""  # definitions of its family, besides `COMMON`
    parallel: bool = True  # it begins by setting `W` local workers
    workers: tuple[int, ...] = (1, 2)  # it is run with each as `W`, and the answers have to be the same
    own: tuple[str, ...] = ()  # types of exceptions that the program raises itself, and may end with
    # one run may end with an answer and the other with an error: something cannot travel
    differ: bool = False
    once: bool = False  # items append their name to the file `calls`; each may do so once
    answers: bool = False  # an error, however clear, is a fault
    limit: float = 300.0  # seconds after which a run counts as hanging, on the busiest machine

    def program(self) -> str:
        """Return the program as one would type it: it prints what it found."""
        return f"{HEAD}{self._lines()}print(answer)\n"

    def judged_program(self) -> str:
        """Return the program as the judge runs it: the same lines, with a report of how it ended."""
        end = 'report.answer(answer, globals().get("right", report.MISSING))\n'
        return f"import report\n{HEAD}{self._lines()}{end}"

    def _lines(self) -> str:
        text = f"{PARALLEL}{self.text.strip()}" if self.parallel else self.text.strip()
        large = [
            f"import {name} as {short}\n" for short, name in LARGE.items() if f"{short}." in self.uses + text
        ]
        return f"{''.join(large)}{COMMON}{self.uses}{text}\n"
