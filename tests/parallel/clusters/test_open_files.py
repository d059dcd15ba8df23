"""A driver that may not open as many files as its workers take says so."""

import subprocess
import sys

import pytest

CODE = """
import logging, resource, sys
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.clusters.client import warn_of_files

logging.basicConfig(format="%(message)s")
soft, hard, workers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
options = {"cores": 2, "memory": "1GB"}
warn_of_files(ParallelConfig.parse({"env": "slurm", "n_workers": workers, "options": options}))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "workers", "said"),
    [
        (600, 2000, 200, ""),
        (600, 1000, 200, "200 workers take about 1456 open files here, and the limit is 1000"),
    ],
    ids=["enough to raise", "too few"],
)
def test_too_few_open_files_for_the_workers_are_said(soft, hard, workers, said):
    """The hard limit counts, as the soft one is raised to it; what is missing is said."""
    command = [sys.executable, "-c", CODE, *map(str, (soft, hard, workers))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said in done.stderr if said else not done.stderr
