"""What the tests here run on workers: imported there by name."""

import os
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider


def square(x):
    return x * x


def nap(x):
    time.sleep(0.05)
    return x


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
