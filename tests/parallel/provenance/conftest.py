"""A package of the user's, for every test here that edits one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parallel.provenance.package import Package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second
    made = Package(tmp_path, monkeypatch)
    yield made
    made.forget()
