"""Packages of the extras `data`, `train` and `report`, which are too large for the default environment."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

_INSTALLED = os.environ.get("ESPNET3_TEST_TORCH")  # by `make test-torch`: there, what is missing is a failure


def needed(package: str) -> Any:
    """Import a package; skip the test without it, but where `make test-torch` has installed it, fail."""
    if _INSTALLED:
        return import_module(package)
    return pytest.importorskip(package, reason="`make test-torch` installs it")


def left_out(package: str) -> bool:
    """Whether tests of a package are not to be collected: it is missing, and `make test-torch` is not who runs them."""
    return not _INSTALLED and find_spec(package) is None
