"""The toy training's modules, where the extra `train` is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs the extra [train]")
sys.path.insert(0, str(Path(__file__).resolve().parent))  # configs name toy.*
