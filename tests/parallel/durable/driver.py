"""A program that runs squares into a folder; it is killed and started again.

python driver.py FOLDER N WORKERS BYTES RUNNER: no file may grow beyond so many bytes, 0 for any size.
"""

import resource
import sys

from espnet3.parallel import set_parallel
from tests.parallel.durable import work

folder, n, workers, most_bytes, runner = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
set_parallel({"env": "local", "n_workers": workers})
provider = work.Provider({"log": f"{folder}/log", "run": f"{folder}/run"})
getattr(work, runner)(provider, output_dir=f"{folder}/run")(range(n))
