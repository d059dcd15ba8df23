"""The toy training's modules, where the extra `train` is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("lightning") is None:  # the extra [train]
    collect_ignore_glob = ["test_*.py"]

sys.path.insert(0, str(Path(__file__).resolve().parent))  # configs name toy.*
