"""The toy training's modules, where the extra `train` is installed."""

import sys
from pathlib import Path

from tests.components.needed import left_out

if left_out("lightning"):
    collect_ignore_glob = ["test_*.py"]

sys.path.insert(0, str(Path(__file__).resolve().parent))  # configs name toy.*
