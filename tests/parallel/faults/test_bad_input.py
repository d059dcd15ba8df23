"""A user's mistakes: each is a clear error before the first item has run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    BaseRunner,
    ConfigError,
    SignatureError,
)
from tests.parallel.faults.workloads import Provider, SquareFiles, TouchFile


@contextlib.contextmanager
def refused(folder: Path, kind: type[BaseException], *words: str) -> Any:
    """Expect an error of a kind that has some words, with no item run."""
    with pytest.raises(kind) as caught:
        yield str(folder / "ran")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (folder / "ran").exists(), "an item has run"


@pytest.mark.parametrize("name", ["forward", "batch_forward", "write_record"])
def test_async_functions(name: str) -> None:
    """A runner's function that is a coroutine function is refused when the class is defined."""

    async def later(*_: Any, **__: Any) -> None:
        """Never awaited."""

    with pytest.raises(SignatureError, match=rf"Wrong\.{name} must be a plain function"):
        type("Wrong", (BaseRunner,), {name: staticmethod(later)})


def test_a_keyword_that_the_env_lacks_with_files(folder: Path) -> None:
    """The same in a run with writers of its own, before any file is opened."""
    with refused(folder, SignatureError, "'fault'", "wrong"):
        SquareFiles(Provider({"wrong": 1}), progress=False, output_dir=folder / "out")(range(10))
    assert not list(folder.glob("out/split.*/*.txt"))


def test_a_keyword_of_a_hook_that_the_env_lacks(folder: Path) -> None:
    """A hook's parameter that the env does not hold is named before the first item, too."""

    class Files(TouchFile):
        @staticmethod
        def write_record(writers: Any, result: Any, state: dict[str, Any], table: Any) -> None:
            """Write nothing."""

    with refused(folder, SignatureError, "'table'") as path:
        Files(Provider({"path": path}), progress=False, output_dir=folder / "out")(range(10))


def test_files_without_a_folder(folder: Path) -> None:
    """A run with writers and no `output_dir` is refused."""
    with refused(folder, ConfigError, "output_dir"):
        SquareFiles(Provider({"fault": "leave", "at": ()}), progress=False)(range(10))
