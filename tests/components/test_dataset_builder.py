"""Builders that know when they are already built, and files that a killed one has left."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from espnet3.components.data.dataset_builder import BuiltFiles, DatasetBuilder
from espnet3.components.data.files import remove_leftovers, write_atomic, write_text_atomic
from espnet3.parallel.ledger.files import BY_UMASK, Draft


class Letters(DatasetBuilder):
    def __init__(self, data_dir: Path, letters: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(data_dir)
        self.letters = letters
        self.made = 0

    def options(self) -> Mapping[str, Any]:
        return {"letters": self.letters}

    def make(self) -> BuiltFiles:
        self.made += 1
        index, payload = self.data_dir / "index", self.data_dir / "sub" / "payload"
        payload.parent.mkdir(exist_ok=True)
        index.write_text("".join(self.letters))
        payload.write_bytes(b"12345")
        return BuiltFiles(index=[index], payload=[payload], facts={"letters": len(self.letters)})


@pytest.fixture
def built(tmp_path: Path) -> Letters:
    builder = Letters(tmp_path / "data")
    assert builder.build() is True
    return builder


def test_a_complete_dataset_is_not_built_again(built: Letters) -> None:
    """A second build finds the dataset complete, makes nothing, and the facts are kept."""
    again = Letters(built.data_dir)
    assert again.is_built()
    assert again.build() is False
    assert again.made == 0
    assert again.facts() == {"letters": 2}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: (data / "sub" / "payload").unlink(), "payload is not there"),
        (lambda data: (data / "sub" / "payload").write_bytes(b"1234"), "has 4 bytes, not 5"),
        (lambda data: (data / "index").write_text("ba"), "index was changed after the build"),
        (lambda data: (data / "built.json").unlink(), "built.json is not there"),
    ],
)
def test_damage_is_noticed_and_repaired(built: Letters, damage: Any, reason: str) -> None:
    """A lost, short or edited file and a broken marker are named, and lead to a new build."""
    damage(built.data_dir)
    assert reason in str(built.why_not_built())
    assert built.build() is True
    assert built.is_built()


def test_other_options_or_a_newer_builder_lead_to_a_new_build(built: Letters) -> None:
    """The marker holds options and version: neither another option nor a new version fits it."""
    assert "options" in str(Letters(built.data_dir, ("a",)).why_not_built())

    class Newer(Letters):
        version = 2

    Newer.__name__ = "Letters"
    assert "version is 2" in str(Newer(built.data_dir).why_not_built())


def test_a_failed_build_leaves_the_dataset_unbuilt(built: Letters) -> None:
    """When a rebuild raises, the old marker is gone: half-written files do not count as built."""

    class Failing(Letters):
        def make(self) -> BuiltFiles:
            super().make()
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        Failing(built.data_dir).build()
    assert not built.is_built()


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    """The error for a file elsewhere names the file and where to write."""

    class Elsewhere(Letters):
        def make(self) -> BuiltFiles:
            (tmp_path / "stray").write_text("x")
            return BuiltFiles(index=[tmp_path / "stray"])

    with pytest.raises(ValueError, match="stray, which is not under its data folder"):
        Elsewhere(tmp_path / "data").build()


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """The temporary files of the same path go, those of other files stay until somebody tidies the folder."""
    drafts = [Draft(tmp_path / name, BY_UMASK) for name in ("file", "file", "file.scp", "other")]
    write_text_atomic(tmp_path / "file", "new")
    assert [os.path.exists(draft.temporary) for draft in drafts] == [False, False, True, True]
    write_atomic(tmp_path / "other", lambda file: file.write(b"x"), sole=False)
    assert os.path.exists(drafts[3].temporary)
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
    for draft in drafts:
        draft.close()
