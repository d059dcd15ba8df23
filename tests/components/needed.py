"""Packages of the extra `data`, which are too large for the default environment."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest


def needed(package: str) -> Any:
    """Import a package; skip the test without it, but where `make test-data` has installed it, fail."""
    if os.environ.get("ESPNET3_TEST_DATA"):
        return import_module(package)
    return pytest.importorskip(package, reason="of the extra [data]; `make test-data` installs it")
