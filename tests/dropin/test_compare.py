"""The comparison of two output folders finds what differs, and nothing that a layer keeps for itself."""

from pathlib import Path

import numpy
import pytest

from tests.dropin.compare import differences


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("theirs", "ours"):
        inside = tmp_path / name / "valid"
        inside.mkdir(parents=True)
        (inside / "text.scp").write_text("a hello\n")
        numpy.savez(inside / "feats_stats.npz", count=numpy.array(3), sum=numpy.array([1.0, 2.0]))
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


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sum": [1.0, 2.0000001]}, []),
        ({"sum": [1.0, 2.0001]}, ["valid/feats_stats.npz: sum differs"]),
        ({"count": 4}, ["valid/feats_stats.npz: count differs"]),
    ],
)
def test_sums_may_differ_by_rounding_and_counts_not(
    folders: tuple[Path, Path], changed: dict[str, object], expected: list[str]
) -> None:
    """Sums within 1e-6 of each other are equal; counts are equal or not."""
    theirs, ours = folders
    arrays = {"count": numpy.array(3), "sum": numpy.array([1.0, 2.0])}
    arrays |= {name: numpy.array(value) for name, value in changed.items()}
    numpy.savez(ours / "valid" / "feats_stats.npz", **arrays)
    assert differences(theirs, ours) == expected
