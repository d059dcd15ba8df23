"""`.scp` files: written and read byte for byte."""

from pathlib import Path

import numpy
import pytest

from espnet3.systems.base.scp import read_aligned, read_scp, scp_id, scp_value, write_scp


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Spaces, an empty value, odd Unicode line separators and order survive the file."""
    rows = [("b", "two  words "), ("a", ""), ("c", "x\u2028y\x0bz"), ("é", " lead")]
    write_scp(tmp_path / "x.scp", rows)
    assert list(read_scp(tmp_path / "x.scp").items()) == rows
    assert (tmp_path / "x.scp").read_bytes().startswith(b"b two  words \na\nc ")


def test_numbers_and_array_scalars_become_text() -> None:
    """Numbers, numpy scalars and one-element arrays are written as Python prints them."""
    values = [3, 0.1, True, numpy.float64(0.5), numpy.int16(7), numpy.array(2), numpy.array([1.5])]
    assert [scp_value(value) for value in values] == ["3", "0.1", "True", "0.5", "7", "2", "1.5"]


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("a\nb", ValueError, "line break"),
        ("\ud800", ValueError, "surrogate"),
        (None, TypeError, "not NoneType"),
        ({"a": 1}, TypeError, "not dict"),
        (numpy.zeros((2, 3)), TypeError, r"shape \(2, 3\)"),
    ],
)
def test_values_that_fit_no_line_are_refused(value: object, kind: type[Exception], message: str) -> None:
    """A value that would break the line, or has no text, is an error that says which."""
    with pytest.raises(kind, match=message):
        scp_value(value)


@pytest.mark.parametrize("bad", ["", "two words", "line\n"])
def test_ids_are_one_word(bad: str) -> None:
    """An id with whitespace, which would end it, is refused."""
    with pytest.raises(ValueError, match="is empty or holds whitespace"):
        scp_id(bad)


def test_ids_are_strings_or_integers() -> None:
    """An id of another type is refused; an integer is fine."""
    with pytest.raises(TypeError, match="must be a string or an integer"):
        scp_id(1.5)
    assert scp_id(12) == "12"


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    """A repeated id and a line without one are errors with file and line number."""
    path = tmp_path / "x.scp"
    path.write_text("a 1\na 2\n")
    with pytest.raises(ValueError, match=r"x\.scp, line 2: utterance 'a' is in the file twice"):
        read_scp(path)
    path.write_text("a 1\n 2\n")
    with pytest.raises(ValueError, match="line 2: no utterance id"):
        read_scp(path)


def test_columns_are_aligned_by_id_or_what_does_not_align_is_named(tmp_path: Path) -> None:
    """A missing file is named with those that are there, and an id in one file only, in either direction."""
    write_scp(tmp_path / "ref.scp", [("a", "1"), ("b", "2")])
    with pytest.raises(FileNotFoundError, match=r"hyp\.scp is not there .* has ref\.scp"):
        read_aligned(tmp_path, {"hyp": "hyp"})
    write_scp(tmp_path / "hyp.scp", [("b", "20"), ("a", "10")])
    table = read_aligned(tmp_path, {"r": "ref", "h": "hyp"})  # in the order of the first
    assert table == {"utt_id": ["a", "b"], "r": ["1", "2"], "h": ["10", "20"]}
    write_scp(tmp_path / "hyp.scp", [("a", "1")])
    for inputs in ({"r": "ref", "h": "hyp"}, {"h": "hyp", "r": "ref"}):
        with pytest.raises(ValueError, match="1 are in one only, such as 'b'"):
            read_aligned(tmp_path, inputs)
