"""`mini_an4` in one of the trees: a command of it, how it went, and what it took."""

import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.dropin.environment import Scratch

RECIPE = Path("egs3", "mini_an4", "esp2_asr")
STATS = "exp/stats_{}"
INFERENCE = "exp/training/inference_{}"
_STAGE = re.compile(r"\[DONE\] stage: (\w+) \(([\d.]+)s\)")
LIMIT = 900  # seconds that one command may take on a busy machine; none needs a tenth on an idle one


@dataclass(slots=True)
class Check:
    """One promise: what was run, how it went, and the seconds of its stages."""

    name: str
    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0  # seconds of its commands by the clock, their start and imports included
    processor: float = 0.0  # the same of all processes together


class Recipe:
    def __init__(self, scratch: Scratch, tree: Path) -> None:
        self.python = str(scratch.python)
        self.env = scratch.env(tree)
        self.folder = tree / RECIPE
        self.tree = tree

    def command(self, stages: Sequence[str], training: str = "training", inference: str = "") -> list[str]:
        words = [self.python, "run.py", "--stages", *stages, "--training_config", f"conf/{training}.yaml"]
        if inference:
            words += ["--inference_config", f"conf/{inference}.yaml", "--metrics_config", "conf/metrics.yaml"]
        return words

    def run(self, check: Check, words: Sequence[str], *, fails: bool = False) -> str:
        """Run one command in the recipe's folder, add to a check what went wrong, and return what it said."""
        before, begin = processor_seconds(), time.perf_counter()
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
        check.wall += time.perf_counter() - begin
        check.processor += processor_seconds() - before
        for stage, seconds in _STAGE.findall(done.stdout):
            check.seconds[stage] = check.seconds.get(stage, 0.0) + float(seconds)
        if (done.returncode != 0) is not fails:
            last = " | ".join(done.stdout.strip().splitlines()[-4:])
            check.wrong.append(f"{' '.join(words[1:6])} ended with {done.returncode}: {last}")
        return done.stdout


def processor_seconds() -> float:
    """Return what this process's children and their descendants have used, as far as they were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
