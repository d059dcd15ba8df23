"""How many files the driver may open follows the number of workers."""

import subprocess
import sys

import pytest

CODE = """
import logging, resource, sys
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.clusters.client import make_room

logging.basicConfig(format="%(message)s")
soft, hard, workers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
options = {"cores": 2, "memory": "1GB"}
make_room(ParallelConfig.parse({"env": "slurm", "n_workers": workers, "options": options}))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "workers", "then", "said"),
    [
        (600, 2000, 200, "1456 2000", ""),
        (600, 1000, 200, "1000 1000", "200 workers take about 1456 open files here, and the limit is 1000"),
    ],
    ids=["raised", "too few"],
)
def test_the_limit_on_open_files_is_raised_as_far_as_workers_need(soft, hard, workers, then, said):
    """The soft limit grows to what the workers take, never beyond the hard one, and what is missing is said."""
    command = [sys.executable, "-c", CODE, *map(str, (soft, hard, workers))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == then
    assert said in done.stderr if said else not done.stderr
