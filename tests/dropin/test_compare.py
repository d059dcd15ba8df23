"""The comparison of two output folders finds what differs, and nothing that a layer keeps for itself."""

from pathlib import Path

import pytest

from tests.dropin.compare import differences


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("theirs", "ours"):
        inside = tmp_path / name / "valid"
        inside.mkdir(parents=True)
        (inside / "text.scp").write_text("a hello\n")
        (inside / "feats_stats.npz").write_bytes(b"PK")
        (inside / "run.json").write_text(name)
    return tmp_path / "theirs", tmp_path / "ours"


def test_a_changed_text_and_a_missing_file_are_named(folders: tuple[Path, Path]) -> None:
    """One byte more, and a file that one folder alone has, are differences."""
    theirs, ours = folders
    (ours / "valid" / "text.scp").write_text("a hello\n\n")
    (theirs / "valid" / "more.scp").write_text("")
    assert differences(theirs, ours) == [
        "valid/more.scp: only with its own layer",
        "valid/text.scp: 8 and 9 bytes, which differ",
    ]
