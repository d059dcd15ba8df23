"""What the tests here run on workers: imported there by name."""

import ctypes
import os
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider


def square(x):
    return x * x


def nap(x):
    time.sleep(0.05)
    return x


def trouble(x, folder):
    """Keep the interpreter's lock for a minute at item 10; at 20 crash and at 30 take all memory, once each."""
    time.sleep(0.05)
    if x == 10:
        ctypes.PyDLL(None).sleep(60)
    once = Path(folder) / f"once-{x}"
    if x in (20, 30) and not once.exists():
        once.touch()
        if x == 20:
            ctypes.string_at(0)
        held = []
        while True:
            held.append(bytearray(10_000_000))
            time.sleep(0.5)  # SLURM kills the whole job where an item outruns our looks, two a second
    return x, os.getpid()


class Env(EnvironmentProvider):
    def build_env_local(self):
        return dict(self.config)


class Slow(BaseRunner):
    """Each item takes a while and notes that it ran: a file in the folder for each time.

    Items from the number `hold` on wait while there is a file of that name.
    """

    @staticmethod
    def forward(idx, folder, seconds, hold):
        (Path(folder) / f"began-{idx}-{os.getpid()}").touch()
        time.sleep(seconds)
        while idx >= hold and (Path(folder) / "hold").exists():
            time.sleep(0.05)
        (Path(folder) / f"ended-{idx}-{os.getpid()}").touch()
        return idx * idx, os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURMD_NODENAME")
