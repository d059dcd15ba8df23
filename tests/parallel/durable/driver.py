"""A program that runs squares into a folder: `python driver.py FOLDER N WORKERS`. It is killed and started again."""

import sys

from espnet3.parallel import set_parallel
from tests.parallel.durable.work import Provider, Squares

folder, n, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
set_parallel({"env": "local", "n_workers": workers})
runner = Squares(Provider({"log": f"{folder}/log"}), output_dir=f"{folder}/run")
runner(range(n))
