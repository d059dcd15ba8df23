"""One outcome as one line: written by workers, appended by the driver, checked without parsing it; and index lists.

    {"n":5,"index":5,"result":...,"crc":1234567890}
    {"n":6,"index":6,"failure":{"cause":"error",...},"crc":1234567890}

`n` is the position in the run's index list, `crc` the CRC-32 of the line's bytes before `,"crc"`. A
quote inside a JSON string is escaped, so the last `,"crc":` of a line is the line's own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from espnet3.parallel.ledger.errors import ValueTypeError, damaged
from espnet3.parallel.ledger.values import from_json, to_json
from espnet3.parallel.messages import brief
from espnet3.parallel.records import ItemFailure

DAMAGED = -1
_SHORT = 1 << 63  # a number below it is written as it is
_CHUNK = 1 << 16  # indices that are hashed at a time
_SHOWN = 3  # indices of a list that are written out
_DIGITS = 18  # of a position; more are damage, and take time to read
_FIELDS: dict[str, tuple[type, ...]] = {  # of a failure, in the order of an ItemFailure's
    **dict.fromkeys(("type", "message", "traceback"), (str,)),
    "attempts": (int,),
    **dict.fromkeys(("worker", "cause"), (str,)),
    "seconds": (float, int, type(None)),
}


def encode_line(position: int, index: Any, value: Any) -> bytes:
    """Return the line of one result."""
    if type(index) is int and type(value) is int and -_SHORT < value < _SHORT:  # a third of the time
        head = b'{"n":%d,"index":%d,"result":%d' % (position, index, value)
    else:
        try:
            head = b'{"n":%d,"index":%b,"result":%b' % (position, index_json(index), to_json(value))
        except ValueTypeError as error:
            raise ValueTypeError(error.where, error.problem, index) from None
    return b'%b,"crc":%d}\n' % (head, crc32(head))


def sealed(head: bytes) -> bytes:
    """Return a line from all of it that stands before its checksum."""
    return b'%b,"crc":%d}\n' % (head, crc32(head))


def encode_failure(position: int, failure: ItemFailure) -> bytes:
    """Return the line of one failed item."""
    facts = {
        "cause": failure.cause,
        "type": failure.error_type,
        "message": failure.message,
        "traceback": failure.traceback,
        "attempts": failure.attempts,
        "worker": failure.worker,
    }
    for key in ("message", "traceback", "worker"):  # a message may quote bytes that are not text
        facts[key] = str(facts[key]).encode("utf-8", "backslashreplace").decode()
    if failure.seconds is not None:
        facts["seconds"] = round(failure.seconds, 6)
    outcome = to_json(facts, "failure")
    return sealed(b'{"n":%d,"index":%b,"failure":%b' % (position, index_json(failure.index), outcome))


def record_of(line: bytes, file: object, number: int) -> dict[str, Any]:
    """Return the record in a line; damage is a `DamagedFolderError` with file and number."""
    record = from_json(line, file, number)
    if type(record) is dict and "index" in record:
        return record
    raise damaged(file, number, ValueError("it has no index"))


def failure_of(line: bytes, file: object, number: int) -> ItemFailure:
    """Return the record of a failed item from its line, of a split or in the merged file."""
    record = record_of(line, file, number)
    facts = record.get("failure", record)
    found = facts if type(facts) is dict else {}
    wrong = [name for name, kinds in _FIELDS.items() if type(found.get(name)) not in kinds]
    if wrong:
        raise damaged(file, number, ValueError(f"a failure has no right {', '.join(wrong)}"))
    values: list[Any] = [found.get(name) for name in _FIELDS]
    return ItemFailure(record["index"], *values)


def index_json(index: Any) -> bytes:
    """Return an index as JSON; numpy's integers are written as the numbers they are."""
    if type(index) is int:
        return b"%d" % index
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(index, numpy.integer):
        return b"%d" % int(index)
    return to_json(index, "index")


def checked(line: bytes) -> tuple[int, int] | None:
    """Return the position a line is for and its checksum, None for a damaged one; no JSON is parsed."""
    if line[-1:] == b"\n":
        line = line[:-1]
    at = line.rfind(b',"crc":')
    digits = line[at + 7 : -1]
    if at < 0 or line[-1:] != b"}" or not digits.isdigit() or len(digits) > _DIGITS:
        return None
    checksum = crc32(line[:at])
    position = line[5 : line.find(b",", 5)]
    if checksum != int(digits) or line[:5] != b'{"n":' or not position.isdigit() or len(position) > _DIGITS:
        return None
    return int(position), checksum


def check_line(line: bytes) -> int:
    """Return the position a line is for, or `DAMAGED`."""
    found = checked(line)
    return DAMAGED if found is None else found[0]


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Return the JSON of index and outcome of a line that `check_line` found whole."""
    begin = line.index(b",", 5) + len(b',"index":')
    if line[begin : begin + 1] in (b"{", b"["):  # only in these can there be a second ,"result":
        text = line[begin:].decode()
        try:
            end = begin + len(text[: json.JSONDecoder().raw_decode(text)[1]].encode())
        except RecursionError as error:
            raise ValueError("its index is nested too deep") from error
    else:
        end = min(at for at in (line.find(b',"result":', begin), line.find(b',"failure":', begin)) if at > 0)
    outcome = line.index(b":", end) + 1
    return line[begin:end], line[outcome : line.rindex(b',"crc":')]


def hash_indices(items: Sequence[Any]) -> str:
    """Return a hash of the indices and their order; a range and the equal list have the same."""
    if (digest := _hash_integers(items)) is not None:
        return digest
    plain = hashlib.sha256(b"json\n")
    for at, item in enumerate(items):
        plain.update(_held(at, item) + b"\n")
    return plain.hexdigest()


def _held(at: int, item: Any) -> bytes:
    try:
        return index_json(item)
    except ValueTypeError as error:
        kind, why = type(item).__qualname__, error.problem.partition(":")[0]  # without the advice for results
        raise ValueTypeError(
            f"indices[{at}] = {brief(item, 80)}",
            f"({kind}) cannot be an index of a run folder, a set of JSON files: give numbers, text, lists or dicts of "
            f"them, such as range(len(items)), and keep the objects in the env ({error.where} {why})",
        ) from None


def _hash_integers(items: Sequence[Any]) -> str | None:
    digest = hashlib.sha256(b"int64\n")
    numpy = sys.modules.get("numpy")
    for at in range(0, len(items), _CHUNK):
        part = items[at : at + _CHUNK]
        if not isinstance(part, range):
            others = set(map(type, part)) - {int}
            if others and (numpy is None or not all(issubclass(kind, numpy.integer) for kind in others)):
                return None
        try:
            numbers = array("q", part)
        except OverflowError:
            return None
        if sys.byteorder == "big":
            numbers.byteswap()
        digest.update(numbers)
    return digest.hexdigest()


def describe_indices(items: Sequence[Any]) -> dict[str, Any]:
    """Describe an index list for `run.json`: count, hash, its ends for people, and the numbers of a range."""
    n = len(items)
    ends = [
        _held(at, items[at]).decode() for at in sorted({*range(min(n, _SHOWN)), *range(max(0, n - 1), n)})
    ]
    whole = {"range": [items.start, items.stop, items.step]} if isinstance(items, range) else {}
    return {"count": n, "sha256": hash_indices(items), "shown": ends, **whole}


def list_shown(indices: dict[str, Any]) -> str:
    """Return the text of a list that `describe_indices` has described, for messages."""
    ends = indices.get("shown") or []
    count = indices.get("count")
    if not ends:
        return f"{count} indices"
    text = ", ".join(ends) if len(ends) == count else f"{', '.join(ends[:-1])} ... {ends[-1]}"
    return f"{count} indices ({text if len(text) <= 120 else text[:117] + '...'})"
