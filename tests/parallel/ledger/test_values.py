"""Results as strict JSON, both ways."""

import enum
import json
import math
import pathlib
import subprocess
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from espnet3.parallel.ledger.errors import DamagedFolderError, LedgerError, ValueTypeError
from espnet3.parallel.ledger.lines import MAX_ARRAY_BYTES, decode, encode, encode_line, from_json, to_json

Point = namedtuple("Point", "x y")
Colour = enum.IntEnum("Colour", "RED")


def same(a: Any, b: Any) -> bool:
    """Compare with types, nan equal to nan and -0.0 different from 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def strict(data: bytes) -> Any:
    """Parse JSON that has neither NaN nor Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


VALUES = [
    None,
    True,
    0,
    -1.5,
    1e308,
    -0.0,
    "",
    "naïve 日本語 \U0001f600 \x00 \u2028",
    [],
    {},
    (),
    {"a": [1, "b", None, {"c": 1.5}]},
    math.nan,
    b"",
    b"\x00\xff",
    (1, (2, [3])),
    pathlib.Path("a/b"),
    pathlib.Path("/x/ü"),
    {1: "a", "1": "b", None: 2, 1.5: 3, (1, 2): 4},
    {"__type__": "float", "value": "nan"},
    [{"__type__": 1}],
    -(10**700),
    np.float32(0.1),
    np.float64("nan"),
    np.int64(-5),
    np.bool_(True),
    np.str_("é"),
    np.bytes_(b"ab"),
    np.complex128(1 - 2j),
    np.datetime64("2024-01-02T03:04:05", "ns"),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.zeros((0, 3), np.float32),
    np.array(1.5),
    np.array(["a", "bcd"]),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([True, False]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Every declared type survives the way to disk and back, with its type, alone and nested."""
    for whole in (value, [value, 1], {"k": value}, (value,)):
        data = to_json(whole)
        strict(data)
        assert b"\n" not in data
        assert same(from_json(data), whole)
        assert same(decode(strict(json.dumps(encode(whole)).encode())), whole)


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        ({"a": [1, 2, {3}]}, "result['a'][2]", "set"),
        (Point(1, 2), "result", "Point"),
        ([Colour.RED], "result[0]", "Colour"),
        ([bytearray(b"ab")], "result[0]", "bytearray"),
        ({"x": OrderedDict(a=1)}, "result['x']", "OrderedDict"),
        (np.array([object()]), "result", "object"),
        (np.zeros(MAX_ARRAY_BYTES // 8 + 1), "result", "65,544 bytes"),
        ({frozenset(): 1}, "a key of result", "frozenset"),
        ([1, "\ud800"], "result[1]", "lone surrogates"),
        ((pathlib.Path("\udcff"),), "result[0]", "lone surrogates"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_json_cannot_hold_is_an_error_that_names_place_and_type(
    value: Any, where: str, kind: str
) -> None:
    """A value without an encoding is refused with the item, the place inside the result, and the type."""
    with pytest.raises(ValueTypeError) as caught:
        encode_line(3, "utt-7", value)
    assert caught.value.where == where
    assert caught.value.index == "utt-7"
    said = f"item 'utt-7': {where} is "
    assert str(caught.value).startswith(said)
    assert kind in str(caught.value)


def test_a_value_that_holds_itself_is_an_error() -> None:
    """Endless nesting is refused by name instead of ending in a RecursionError."""
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueTypeError, match="holds itself"):
        to_json(circle)


def test_an_array_of_the_largest_size_is_stored() -> None:
    """64 KiB are within the limit, and the array that comes back can be written to."""
    array = np.arange(MAX_ARRAY_BYTES // 8)
    back = from_json(to_json(array))
    back[0] = 1
    assert (back[1:] == array[1:]).all()


DTYPES = ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e5m2"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_comes_back_as_it_was(dtype: str) -> None:
    """Kind, shape and bytes of a tensor are kept, whatever its strides, views and gradient."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    views = [whole, whole.T, whole[0, 0], whole[:0], whole[:1].expand(4, 3)]
    if dtype == "float32":
        views += [
            (whole.requires_grad_() * 2),
            torch._neg_view(whole.detach()),
            torch.zeros(MAX_ARRAY_BYTES // 4),
        ]
    if dtype == "complex64":
        views.append(whole.conj())
    for tensor in views:
        back = from_json(to_json({"k": (tensor,)}))["k"][0]
        assert (back.dtype, back.shape, back.requires_grad) == (tensor.dtype, tensor.shape, False)
        assert back.to(torch.complex128).equal(tensor.detach().to(torch.complex128))


def test_a_tensor_that_a_line_cannot_hold_is_an_error() -> None:
    """A large, sparse or meta tensor and a parameter are refused, with the item and the hook."""
    torch = pytest.importorskip("torch")
    for tensor, said in [
        (torch.zeros(MAX_ARRAY_BYTES // 4 + 1), "65,540 bytes"),
        (torch.zeros(2).to_sparse(), "without dense data"),
        (torch.zeros(2, device="meta"), "without dense data"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
    ]:
        with pytest.raises(ValueTypeError, match=f"item 7: result is .*{said}.*write_record"):
            encode_line(7, 7, tensor)


@pytest.mark.parametrize(
    "change",
    [{"shape": [3]}, {"shape": [-1]}, {"shape": [1 << 62, 4]}, {"dtype": "qint8"}, {"dtype": "Tensor"},
     {"dtype": "float64"}, {"dtype": "bool", "shape": [8], "base64": "AAEFAAAAAAA="}, {"base64": ""}],
    ids=str,
)  # fmt: skip
def test_a_tensor_that_no_run_writes_is_damage(change: dict[str, Any]) -> None:
    """Another kind, number of bytes or shape than that of a written tensor is refused before it is used."""
    torch = pytest.importorskip("torch")
    line = json.dumps({**json.loads(to_json(torch.zeros(2))), **change}).encode()
    with pytest.raises(DamagedFolderError, match="line 3 is damaged"):
        from_json(line, "results.jsonl", 3)


def test_a_tag_of_a_newer_version_is_an_error() -> None:
    """A tag that is not known is refused, not returned as a dict."""
    with pytest.raises(LedgerError, match="newer"):
        from_json(b'{"__type__":"tensor"}')


def test_numpy_is_not_loaded_to_write_plain_values() -> None:
    """Writing and reading plain values works where numpy is not installed."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from espnet3.parallel.ledger.lines import *\n"
        "assert from_json(to_json([1, (2,), {'a': b'x'}])) == [1, (2,), {'a': b'x'}]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
