"""Tests that act as two accounts: this one, root, and a stranger whose files they make."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only root can do: give a file to another account."""
    for item in items:
        if item.get_closest_marker("accounts") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="two accounts need root; `make test-security` as root"))
