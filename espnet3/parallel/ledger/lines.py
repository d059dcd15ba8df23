"""One outcome as one line: written by workers, appended by the driver, checked without parsing it.

    {"n":5,"index":5,"result":...,"crc":1234567890}
    {"n":6,"index":6,"failure":{"cause":"error",...},"crc":1234567890}

`n` is the position in the run's index list, `crc` the CRC-32 of the line's bytes before `,"crc"`. A
quote inside a JSON string is escaped, so the last `,"crc":` of a line is the line's own.

Index and result are strict JSON, both ways: other values are tagged, or an error with their place.
Plain values are exactly of type `str`, `int`, `bool`, `None`, finite `float`, `list`, and `dict` with string keys.
Everything else is written as an object with a `__type__`:

    float       nan, inf, -inf               {"__type__": "float", "value": "nan"}
    bytes                                    {"__type__": "bytes", "base64": ...}
    tuple                                    {"__type__": "tuple", "items": [...]}
    pathlib.Path                             {"__type__": "path", "value": "a/b"}
    dict        other keys, or "__type__"    {"__type__": "dict", "items": [[key, value], ...]}
    numpy scalar                             {"__type__": "numpy.scalar", "dtype": "float32", "value": 0.5}
    numpy array up to 64 KiB                 {"__type__": "numpy.array", "dtype": "<f4", "shape": [3],
                                              "base64": ...}
    torch tensor up to 64 KiB                {"__type__": "torch.tensor", "dtype": "float32", "shape": [3],
                                              "base64": ...}

A tensor comes back in main memory and without its gradient.

Subclasses (a namedtuple, an IntEnum, an OrderedDict) are refused: they would come back as something else. So are text
that UTF-8 cannot hold (lone surrogates), and numbers of more digits than Python reads (4,300).

A file may come from anywhere: a tagged value that was read is written again, and must be the same. So only types that
are written here come back, and an array or tensor holds the bytes of its line, of a kind without pointers.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, NoReturn
from zlib import crc32

from espnet3.parallel.checks import loaded
from espnet3.parallel.ledger.errors import LedgerError, ValueTypeError, damaged
from espnet3.parallel.ledger.files import is_of
from espnet3.parallel.messages import brief
from espnet3.parallel.records import ItemFailure

DAMAGED = -1
_SHORT = 1 << 63  # a number below it is written as it is
# a number of more digits is damage, and takes time to read
_LINE = re.compile(rb'(?s)(\{"n":(\d{1,18}),.*),"crc":(\d{1,18})\}\n?')


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


def facts_of(failure: ItemFailure) -> dict[str, Any]:
    """Return the facts of a failed item as plain data, without its index."""
    names = ("cause", "error_type", "message", "traceback", "attempts", "worker")
    facts: dict[str, Any] = {name.removeprefix("error_"): getattr(failure, name) for name in names}
    for key in ("message", "traceback", "worker"):  # a message may quote bytes that are not text
        facts[key] = str(facts[key]).encode("utf-8", "backslashreplace").decode()
    if failure.seconds is not None:
        facts["seconds"] = round(failure.seconds, 6)
    return facts


def encode_failure(position: int, failure: ItemFailure) -> bytes:
    """Return the line of one failed item."""
    outcome = to_json(facts_of(failure), "failure")
    head = b'{"n":%d,"index":%b,"failure":%b' % (position, index_json(failure.index), outcome)
    return b'%b,"crc":%d}\n' % (head, crc32(head))


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
    if type(facts) is dict:
        said = {**facts, "error_type": facts.get("type"), "index": record["index"]}
        values: dict[str, Any] = {field.name: said.get(field.name) for field in fields(ItemFailure)}
        if is_of(values, ItemFailure):
            return ItemFailure(**values)
    raise damaged(file, number, ValueError("it has not the fields of a failure"))


def index_json(index: Any) -> bytes:
    """Return an index as JSON; numpy's integers are written as the numbers they are."""
    if type(index) is int:
        return b"%d" % index
    numpy = loaded("numpy")
    if numpy is not None and isinstance(index, numpy.integer):
        return b"%d" % int(index)
    return to_json(index, "index")


def checked(line: bytes) -> int:
    """Return the position that a whole line is for, or `DAMAGED`; no JSON is parsed."""
    found = _LINE.fullmatch(line)
    return int(found[2]) if found is not None and crc32(found[1]) == int(found[3]) else DAMAGED


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Return the JSON of index and outcome of a line that `checked` found whole."""
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


MAX_ARRAY_BYTES = 64 << 10  # a line stays something that `less` and `jq` can show
_MAX_DEPTH = 100  # far below what any reader's stack holds
_HOOK = "or write it in a writer hook (open_writers, write_record)"
_NO_ENCODING = f"which a line of JSON cannot hold: return numbers, text, lists and dicts, {_HOOK}"
_TAG = "__type__"
_SCALARS = frozenset({str, int, bool, type(None), float})
_STRINGS = frozenset({str})
_PATH = type(pathlib.Path())
# that of a JSONEncoder, which makes one for each value: a third of the time
_chunks = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, json.JSONEncoder().default, json.encoder.encode_basestring, None, ":", ",", False, False, False
)


def _dumps(value: Any) -> str:
    return "".join(_chunks(value, 0))


def to_json(value: Any, where: str = "result") -> bytes:
    """Return a value as one line of strict JSON, without the line's end."""
    if value is None:
        return b"null"
    if type(value) in _SCALARS or _is_plain(value, 0):
        try:
            return _dumps(value).encode()
        except ValueError:
            pass  # nan or inf: the slow way tags or refuses it
    return _dumps(encode(value, where, 0)).encode()


def from_json(data: bytes, file: object = "", line: int = 0) -> Any:
    """Return the value that `to_json` was given."""
    try:
        text = data.decode()
        plain = _loads(text)
        # a quote inside a JSON string is escaped: a tag has these bytes, or escaped letters
        return _decoded(plain, 0) if '"__type__"' in text or "\\u" in text else plain
    except _NOT_WRITTEN as error:
        raise damaged(file, line, error) from error


def decode(value: Any, file: object = "") -> Any:
    """Return the value that `encode` was given; other data is a `DamagedFolderError` that names the file."""
    try:
        return _decoded(value, 0)
    except _NOT_WRITTEN as error:
        raise damaged(file, 0, error) from error


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if depth >= _MAX_DEPTH or not (kind is list or (kind is dict and _is_object(value))):
        return False
    inner = value if kind is list else value.values()
    # the first at the speed of C for a list of numbers
    return _SCALARS.issuperset(map(type, inner)) or all(_is_plain(item, depth + 1) for item in inner)


def encode(value: Any, where: str = "result", depth: int = 0) -> Any:
    """Return a value as plain JSON data, tagged where needed; it stands `depth` levels deep in another one."""
    if depth > _MAX_DEPTH:
        raise ValueTypeError(where[:200], f"is nested more than {_MAX_DEPTH} deep, or holds itself")
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value, where, depth)
    numpy = loaded("numpy")  # a value can only be numpy's where numpy is loaded
    if numpy is not None:
        if isinstance(value, numpy.generic):
            return _numpy_scalar(value, where, depth)
        if type(value) is numpy.ndarray:
            _check_array(f"numpy array of dtype {value.dtype}", value, value.dtype.kind in "biufcmMSU", where)
            return _array("numpy.array", value.dtype.str, value, value.tobytes())
    torch = loaded("torch")
    if torch is not None and type(value) is getattr(torch, "Tensor", None):
        return _torch_tensor(value, where)
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    base = next((b.__name__ for b in (dict, list, tuple, str, int, float, bytes) if issubclass(kind, b)), "")
    fix = f"and would come back as {base}: return {base}(value), {_HOOK}" if base else _NO_ENCODING
    raise ValueTypeError(where, f"is of type {name}, {fix}")


def _write_text(value: str, where: str, depth: int) -> Any:
    try:
        value.encode()
    except ValueError:
        wrong = "is a str with lone surrogates, which no UTF-8 file can hold: return bytes, as of os.fsencode"
        raise ValueTypeError(where, wrong) from None
    return value


def _write_list(value: Iterable[Any], where: str, depth: int) -> Any:
    return [encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]


def _write_dict(value: dict[Any, Any], where: str, depth: int) -> Any:
    items = [
        [encode(key, f"a key of {where}", depth + 1), encode(item, f"{where}[{brief(key, 80)}]", depth + 1)]
        for key, item in value.items()
    ]
    return dict(items) if _is_object(value) else {_TAG: "dict", "items": items}


def _is_object(value: dict[Any, Any]) -> bool:
    return _TAG not in value and _STRINGS.issuperset(map(type, value))


_WRITERS: dict[type, Callable[[Any, str, int], Any]] = {
    str: _write_text,
    float: lambda value, *_: value if math.isfinite(value) else {_TAG: "float", "value": str(value)},
    **dict.fromkeys((int, bool, type(None)), lambda value, *_: value),
    list: _write_list,
    dict: _write_dict,
    tuple: lambda value, *at: {_TAG: "tuple", "items": _write_list(value, *at)},
    bytes: lambda value, *_: {_TAG: "bytes", "base64": _base64(value)},
    _PATH: lambda value, *at: {_TAG: "path", "value": _write_text(str(value), *at)},
}


def _numpy_scalar(value: Any, where: str, depth: int) -> Any:
    dtype = value.dtype
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        # a float64 holds every float16, float32 and float64
        return {_TAG: "numpy.scalar", "dtype": dtype.name, "value": encode(value.item(), where, depth)}
    if dtype.kind == "U":
        return {_TAG: "numpy.scalar", "dtype": "str", "value": _write_text(str(value), where, depth)}
    if dtype.kind in "fcmMS":
        return {_TAG: "numpy.scalar", "dtype": dtype.str, "base64": _base64(value.tobytes())}
    raise ValueTypeError(where, f"is a numpy scalar of dtype {dtype}, {_NO_ENCODING}")


def _torch_tensor(value: Any, where: str) -> Any:
    name = str(value.dtype).removeprefix("torch.")
    is_dense = str(value.layout) == "torch.strided" and not (value.is_meta or value.is_nested)
    called = f"torch tensor of dtype {name}" if is_dense else f"torch tensor without dense data ({name})"
    _check_array(called, value, is_dense and _TENSOR.fullmatch(name), where)
    data = bytearray(value.nbytes)
    if data:
        held = sys.modules["torch"].frombuffer(data, dtype=value.dtype)
        held.view(value.shape).copy_(value.detach())  # from any device, in any order
    return _array("torch.tensor", name, value, data)


def _check_array(called: str, value: Any, is_known: object, where: str) -> None:
    if not is_known:
        raise ValueTypeError(where, f"is a {called}, {_NO_ENCODING}")
    if value.nbytes > MAX_ARRAY_BYTES:
        size = f"{value.nbytes:,} bytes; up to {MAX_ARRAY_BYTES:,} are stored in a line"
        raise ValueTypeError(where, f"is a {called} of {size}: return less of it, {_HOOK}")


def _array(kind: str, dtype: str, value: Any, data: bytes | bytearray) -> Any:
    shape = [int(length) for length in value.shape]
    return {_TAG: kind, "dtype": dtype, "shape": shape, "base64": _base64(data)}


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_loads = json.JSONDecoder(parse_constant=_refuse_constant).decode


# raised by the readers below for values that are not written here
_NOT_WRITTEN = (ValueError, TypeError, LookupError, OverflowError, RecursionError)
_DTYPE = re.compile(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")
_SCALAR = re.compile(r"str|bool|u?int(8|16|32|64)|float(16|32|64)")
_TENSOR = re.compile(r"bool|u?int(8|16|32|64)|b?float16|float(32|64)|complex(32|64|128)|float8_e\dm\d[a-z]*")


def _decoded(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"a value is nested more than {_MAX_DEPTH} deep")
    if type(value) is dict:
        if _TAG in value:
            return _untagged(value, depth)
        return {key: _decoded(item, depth + 1) for key, item in value.items()}
    if type(value) is list:
        return [_decoded(item, depth + 1) for item in value]
    return value


def _untagged(value: dict[str, Any], depth: int) -> Any:
    kind = value[_TAG]
    if kind in ("tuple", "dict"):
        return _read_items(kind, depth, **value)
    read = _READERS.get(kind)
    if read is None:
        raise ValueError(
            f"a value is tagged {brief(kind, 80)}, which this version does not know: read it with a newer one"
        )
    made = read(value)
    if encode(made, "", 0) != value:
        raise ValueError(f"this is not how a value is written: {brief(value, 80)}")
    return made


def _read_items(kind: str, depth: int, *, items: list[Any], __type__: str) -> Any:
    if type(items) is not list:
        raise TypeError(f"the items of a {kind} are a {type(items).__name__}")
    if kind == "tuple":
        return tuple(_decoded(item, depth + 1) for item in items)
    if not all(type(pair) is list for pair in items):
        raise TypeError("the items of a dict are no pairs")
    made = {_decoded(key, depth + 1): _decoded(item, depth + 1) for key, item in items}
    if len(made) != len(items) or _is_object(made):
        raise ValueError("a dict has a key twice, or needs no tag")
    return made


def _bytes_of(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value["base64"], validate=True)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LedgerError(
            f"a result holds a {name} value, and {name} is not installed here; install it to read the results"
        ) from error


def _read_numpy_scalar(value: dict[str, Any]) -> Any:
    if "value" not in value:
        dtype = _dtype(value)
        if dtype.kind == "S":  # an array drops the zeros at the end
            return dtype.type(_bytes_of(value)[: dtype.itemsize])
        return _flat(value)[0]
    if not _SCALAR.fullmatch(value["dtype"]):
        raise ValueError(f"no scalar is of dtype {brief(value['dtype'], 80)}")
    numpy = _package("numpy")
    with numpy.errstate(over="ignore"):  # a value that does not fit was not written here
        return numpy.dtype(value["dtype"]).type(_decoded(value["value"], 0))


def _flat(value: dict[str, Any]) -> Any:
    dtype, data = _dtype(value), bytearray(_bytes_of(value))
    if dtype.kind == "U":  # text with a code beyond Unicode ends in errors elsewhere
        data.decode("utf-32-be" if dtype.str[0] == ">" else "utf-32-le", "surrogatepass")
    _check_bools(data, dtype.kind == "b")
    return _package("numpy").frombuffer(data, dtype)


def _check_bools(data: bytearray, are_bools: bool) -> None:
    if are_bools and data.strip(b"\0\1"):  # any other byte is neither true nor false
        raise ValueError("a truth value is neither 0 nor 1")


def _read_torch_tensor(value: dict[str, Any]) -> Any:
    torch, name = _package("torch"), value["dtype"]
    dtype = getattr(torch, name, None) if _TENSOR.fullmatch(name) else None
    if dtype is None:
        raise ValueError(f"no tensor is of dtype {brief(name, 80)}")
    data = bytearray(_bytes_of(value))
    _check_bools(data, name == "bool")
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)
    try:
        return flat.view(value["shape"])
    except RuntimeError as error:
        raise ValueError(f"its bytes have not the shape {brief(value['shape'], 80)}") from error


def _dtype(value: dict[str, Any]) -> Any:
    if not _DTYPE.fullmatch(value["dtype"]):
        raise ValueError(f"no array is of dtype {brief(value['dtype'], 80)}")
    return _package("numpy").dtype(value["dtype"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda v: float(v["value"]),
    "bytes": _bytes_of,
    "path": lambda v: pathlib.Path(_decoded(v["value"], 0)),
    "numpy.scalar": _read_numpy_scalar,
    "numpy.array": lambda v: _flat(v).reshape(v["shape"]),
    "torch.tensor": _read_torch_tensor,
}
