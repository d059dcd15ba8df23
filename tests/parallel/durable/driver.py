"""A program that runs squares into a folder; it is killed and started again.

python driver.py FOLDER N WORKERS BYTES SECONDS: no file may grow beyond so many bytes, 0 for any size; an item takes so
long.
"""

import resource
import sys

from espnet3.parallel import set_parallel
from tests.parallel.durable.work import Provider, SlowSquares, Squares

folder, n, workers, most_bytes, seconds = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
set_parallel({"env": "local", "n_workers": workers})
cls, config = (SlowSquares, {"seconds": seconds}) if seconds else (Squares, {})
runner = cls(Provider({"log": f"{folder}/log", **config}), output_dir=f"{folder}/run")
runner(range(n))
