"""One outcome as one line."""

from dataclasses import replace
from typing import Any

import pytest

from espnet3.parallel.ledger.lines import (
    checked,
    encode_failure,
    encode_line,
    failure_of,
    from_json,
    split_line,
)
from espnet3.parallel.records import ItemFailure
from tests.parallel.ledger.making import failure

HARD = {"a": 1, "result": ',"result":', "é": [{"result": ',"crc":5}'}]}


@pytest.mark.parametrize(
    "index", [0, -3, "utt-1", 'a","result":', HARD, [HARD], ("x", 1), None, 2.5], ids=repr
)
def test_a_line_is_read_back(index: Any) -> None:
    """Position, index and result come back whatever JSON text they hold, with or without the line's end."""
    line = encode_line(5, index, HARD)
    assert line.count(b"\n") == 1
    for whole in (line, line[:-1]):
        assert [from_json(part) for part in split_line(whole)] == [index, HARD]
        assert checked(whole) == 5


def test_a_failure_is_read_back() -> None:
    """A failed item's record comes back from its line; text that is not valid Unicode is escaped."""
    record = replace(failure("utt", "poison"), seconds=1.25)
    line = encode_failure(3, record)
    assert failure_of(line, "", 1) == record
    assert b'"seconds":1.25' in line
    odd = ItemFailure(1, "E", "\ud800", "\udcff", 2, "w")
    assert failure_of(encode_failure(1, odd), "", 1).message == "\\ud800"
