"""Seconds of `infer` and `measure` with both layers, in turn, so that both meet the same machine."""

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tests.dropin.environment import Scratch
from tests.dropin.recipe import INFERENCE, Check, Recipe, processor_seconds

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>
HOW = {"one worker": "serial", "two workers": "parallel"}


@dataclass(frozen=True, slots=True)
class Times:
    """One way to run them, with one layer: its seconds in each round, start and imports included."""

    how: str
    who: str
    wall: tuple[float, ...]
    processor: tuple[float, ...]
    load: tuple[float, ...]  # the machine's, of the minute in which each round ended


def measure(scratch: Scratch, rounds: int) -> list[Times]:
    """Run both ways with both layers, round after round, and remove what they have written."""
    _adopt_orphans()
    layers = {"its own": Recipe(scratch, scratch.theirs), "ours": Recipe(scratch, scratch.ours)}
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for how, words in HOW.items():
            for who, recipe in layers.items():
                check = Check(f"{how}, {who}")
                before = processor_seconds()
                recipe.run(check, recipe.command(["infer", "measure"], inference=f"inference_{words}"))
                _wait_for_orphans()
                spent = processor_seconds() - before
                shutil.rmtree(recipe.folder / INFERENCE.format(words), ignore_errors=True)
                if check.wrong:
                    raise RuntimeError(f"{check.name}: {check.wrong}")
                found.setdefault((how, who), []).append((check.wall, spent, os.getloadavg()[0]))
    return [
        Times(how, who, *(tuple(kind) for kind in zip(*seconds, strict=True)))
        for (how, who), seconds in found.items()
    ]


def _adopt_orphans() -> None:
    """Have processes whose parent ends become this one's children, as only their seconds are counted."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _wait_for_orphans() -> None:
    """Wait until the last of them has ended: a layer's fork server and its workers may outlive the command a little."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def table(times: Sequence[Times]) -> Iterator[str]:
    yield "| `infer` and `measure` | Layer | Wall time, s | Processor time, s |"
    yield "|---|---|---|---|"
    for each in times:
        yield f"| {each.how} | {each.who} | {_spread(each.wall)} | {_spread(each.processor)} |"


def _spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
