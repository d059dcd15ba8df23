"""The install line of an extra: it can be typed where this package came from."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from espnet3.parallel.backends.loading import pip_line

INDEX = "pip install 'espnet3-parallel[gpu]'"


class Installed:
    """A distribution with what pip noted of where it came from."""

    def __init__(self, noted: dict[str, object] | None) -> None:
        self.noted = noted

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.noted is None else json.dumps(self.noted)


@pytest.mark.parametrize(
    ("noted", "line"),
    [
        (None, INDEX),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[gpu]'"),
        ({"url": "file:///a", "dir_info": {}}, "pip install '/a[gpu]'"),
        ({"url": "file:///x.whl", "archive_info": {}}, "pip install 'espnet3-parallel[gpu] @ file:///x.whl'"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git"}},
            "pip install 'espnet3-parallel[gpu] @ git+https://host/x.git'",
        ),
    ],
    ids=["index", "editable", "folder", "wheel", "git"],
)
def test_an_extra_comes_from_where_the_package_came(
    noted: dict[str, object] | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the index, the folder, the file or the repository that the package was installed from."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(noted))
    assert pip_line("gpu") == line


def test_in_the_checkout_itself_its_path_is_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stands in the checkout can type the line of the README."""
    noted = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(noted))
    monkeypatch.chdir(tmp_path)
    assert pip_line("gpu") == "pip install -e '.[gpu]'"


def test_a_checkout_that_nobody_installed_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """On sys.path alone the package can still be installed from its folder."""

    def none(name: str) -> Installed:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    root = Path(__file__).resolve().parents[3]
    monkeypatch.chdir(root / "tests")
    assert pip_line("gpu") == f"pip install -e '{root}[gpu]'"
