"""Full disks, read-only folders and killed drivers."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.ledger.errors import DamagedFolderError, FolderWriteError
from tests.parallel.ledger.making import begin, partial


@contextmanager
def as_nobody() -> Iterator[None]:
    """For root, whom no permission stops: be somebody else."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_read_only_folder_is_an_error_at_once() -> None:
    """Opening a run where nothing can be written says so, in a folder that exists and in one to be made."""
    folder = Path(tempfile.mkdtemp())
    try:
        partial(folder / "run", [0])
        for path in (folder / "run", folder):
            path.chmod(0o555)
        with as_nobody():
            for path in (folder / "run", folder / "new"):
                with pytest.raises(FolderWriteError, match="Permission denied; .*change its permissions"):
                    begin(path, resume=False)
    finally:
        for path in (folder, folder / "run"):
            path.chmod(0o700)
        shutil.rmtree(folder)


@pytest.mark.parametrize("below", ["", "run"], ids=["the-folder", "above-it"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, below: str) -> None:
    """An output_dir that is a file, or is below one, is an error that says so."""
    (tmp_path / "results").write_text("mine")
    with pytest.raises(FolderWriteError, match="(File exists|Not a directory); .*another output_dir"):
        begin(tmp_path / "results" / below)
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize("how", ["deleted", "moved"])
@pytest.mark.parametrize("at", [5, 99], ids=["before-a-write", "before-the-merge"])
def test_a_run_whose_folder_vanishes_does_not_say_that_it_is_kept(tmp_path: Path, how: str, at: int) -> None:
    """A runner whose folder is deleted or moved by an item stops with that error, and claims nothing to be kept."""

    class Deletes(BaseRunner):
        @staticmethod
        def forward(idx: int, folder: str) -> int:
            if idx == at:
                shutil.rmtree(folder) if how == "deleted" else os.rename(folder, f"{folder}.away")
            return idx

    class Knows(EnvironmentProvider):
        def build_env_local(self) -> dict[str, Any]:
            return {"folder": self.config["folder"]}

    folder = tmp_path / "run"
    with pytest.raises(DamagedFolderError, match="is gone: it was deleted or moved") as caught:
        Deletes(Knows({"folder": str(folder)}), output_dir=folder, progress=False)(range(100))
    assert "kept" not in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert list(Deletes(Knows({"folder": str(folder)}), output_dir=folder, progress=False)(range(5))) == list(
        range(5)
    )
