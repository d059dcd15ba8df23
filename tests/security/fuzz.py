"""Lines that no run writes, drawn from a seed: every tag and field of the decoder with what does not belong there.

    python -m tests.security.fuzz --lines 1000000 --seed 1

A line either gives a value, which must be written as that very line again, or the folder's damage with file and number.
The process has an address space of `SPACE`, and says how many lines it read, and how many of them gave a value.
"""

import argparse
import contextlib
import copy
import json
import math
import pathlib
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.lines import encode, from_json, to_json

with contextlib.suppress(ImportError):
    import torch
SPACE = (8 if "torch" in globals() else 2) << 30  # its libraries alone fill two
DTYPES = ("O", "|O", "|O8", "V8", "i4,O", "(2,)i4", "<f8", "<f4", ">i2", "|b1", "|S0", "|S3", "<U0", "<U2",
          "<M8[ns]", "<M8",
          "<m8[3D]", "<f16", "<c16", "float32", "int8", "uint64", "bool", "str", "object", "<U999999999",
          "|S99999999999",
          "<M8[99999999999999s]", "i", "", "<i3", "=i4", "datetime64[ns]", "a" * 50)  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 255, 2**31, 2**63, -(2**63) - 1, 10**30, 10**600, 0.5, 1e308, -0.0, "",
    "a", "nan", "NaN",
    "-inf", "1_0", " 1", "0x1", "-0x" + "f" * 600, "0x", "AAAA", "AAA=", "A", "====", "é", "\u202e", "a//b",
    "a/../b", "\0",
    "/" * 300, "x" * 5000, [], [[]], {}, [0], [1], [-1], [2**62, 4], [0, 2**63], [3, -1], [1.0], ["1"], [None],
    [1] * 70,
    [[1, 2]], ["ab"], [["a", 1], ["a", 2]], [[1, 0], [True, 0]], [[[], 1]], {"a": 1}, {"__type__": "tuple",
    "items": [1]},
    {"__type__": "float", "value": "inf"}, {"__type__": "str", "base64": "YQ=="},
)  # fmt: skip
TAGS = ("float", "bytes", "tuple", "path", "dict", "numpy.scalar", "numpy.array")
FIELDS = ("__type__", "value", "base64", "items", "dtype", "shape", "index", "extra")
WRITTEN: tuple[Any, ...] = (
    math.nan, -math.inf, 10**700, "\ud7ff", b"", b"\0\xff", (),
    (1, (2, [3])),
    pathlib.Path("a/b"), {1: "a", "1": 2, None: (1.5,)}, {"__type__": "float",
    "value": "nan"},
    np.float32(0.1), np.float64("nan"), np.int8(-5), np.uint64(2**64 - 1), np.bool_(True), np.str_("é"),
    np.bytes_(b"a\0"),
    np.complex64(1j), np.longdouble(1), np.datetime64("2024-01-02", "ns"), np.timedelta64(3, "D"),
    np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 3), np.float32), np.array(1.5), np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]), np.array([True, False]), np.array([1j]), np.array(["2024-01-02"], "M8[D]"),
    np.zeros(0, "U1"),
)  # fmt: skip


if "torch" in globals():
    TAGS += ("torch.tensor",)
    DTYPES += ("bfloat16", "float8_e5m2", "qint8", "complex32", "float4_e2m1fn_x2", "Tensor")
    WRITTEN += (
        torch.arange(6).reshape(2, 3),
        torch.zeros(0, 3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
    )
    WRITTEN += (torch.tensor(1.5), torch.tensor([1j]), torch.zeros(2, dtype=torch.uint8))


def drawn(seed: int, n: int) -> Iterator[bytes]:
    """Yield so many lines, each of them made from values that are written, with up to four things changed."""
    draw = random.Random(seed)
    written = [json.loads(to_json(value)) for value in WRITTEN]
    for _ in range(n):
        plain = {"index": draw.randrange(9), "result": _nested(draw, written, draw.randrange(4))}
        for _ in range(draw.randrange(5)):
            _change(draw, plain)
        data = json.dumps(plain, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        yield _damaged(draw, data) if draw.random() < 0.2 else data


def _nested(draw: random.Random, written: list[Any], depth: int) -> Any:
    one = json.loads(json.dumps(draw.choice(written)))
    if not depth:
        return one
    inner = _nested(draw, written, depth - 1)
    return draw.choice(
        [
            [inner, one],
            {"a": inner},
            {"__type__": "tuple", "items": [inner]},
            {"__type__": "dict", "items": [[one, inner], [1, 2]]},
            _deep(draw.choice([5, 60, 99, 101]), inner),
        ]
    )


def _deep(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = {"__type__": "tuple", "items": [value]}
    return value


def _change(draw: random.Random, plain: Any) -> None:
    """Change one field somewhere in it."""
    objects = [one for one in _walk(plain) if isinstance(one, dict)]
    one = draw.choice([found for found in objects if "__type__" in found] or objects)
    name = draw.choice([*one, draw.choice(FIELDS)])
    if draw.random() < 0.1:
        one.pop(name, None)
    elif name == "dtype":
        one[name] = draw.choice(DTYPES)
    elif name == "__type__" and draw.random() < 0.8:
        one[name] = draw.choice(TAGS)
    else:
        one[name] = copy.deepcopy(draw.choice(HOSTILE))


def _walk(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, (list, tuple)) else ()


def _damaged(draw: random.Random, data: bytes) -> bytes:
    """Change bytes, where a decoder of JSON has to look."""
    at, end = sorted(draw.randrange(len(data) + 1) for _ in "12")
    cut = data[:at] + data[end:] if draw.random() < 0.5 else data[:at] + data[at:end] * 2 + data[end:]
    extra = draw.choice(
        [b"", b"NaN", b"1e999", b"9" * 5000, b"[" * 3000, b"\xff", b"\xed\xa0\x80", b"\\u005f", b'"', b"\0"]
    )
    return cut[:at] + extra + cut[at:]


def judge(line: bytes, number: int) -> bool:
    """Tell whether a line gives a value; an error is one that is not dealt with as the head of this file says."""
    try:
        value = from_json(line, "results.jsonl", number)
    except DamagedFolderError as error:
        if f"results.jsonl, line {number} is damaged" in str(error):
            return False
        raise
    if b"\\ud" not in line:  # half a letter, escaped, is written with a tag
        assert _as_written(json.loads(to_json(value))) == _as_written(json.loads(line)), line
    for one in _walk(value):
        if isinstance(one, (np.ndarray, np.generic)) or type(one).__name__ == "Tensor":
            assert one.nbytes <= 4 * len(line), line  # a letter of text takes four
            one.tolist()  # looks at all of it
    return True


def _as_written(plain: Any) -> Any:
    """Return it with tags for plain numbers that JSON can hold and that are written with one: 1e999, 3,000 digits."""
    if isinstance(plain, dict):
        return {key: _as_written(value) for key, value in plain.items()}
    return [_as_written(value) for value in plain] if isinstance(plain, list) else encode(plain)


def main() -> None:
    """Draw the lines, and read them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    begin, values = time.perf_counter(), 0
    for number, line in enumerate(drawn(asked.seed, asked.lines), 1):
        try:
            values += judge(line, number)
        except BaseException:
            print(f"line {number} of seed {asked.seed}: {line!r:.2000}", flush=True)
            raise
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    seconds = time.perf_counter() - begin
    print(
        f"{asked.lines} lines of seed {asked.seed}: {values} gave a value, the others the folder's damage; "
        f"{seconds:.0f} s, at most {memory} MB"
    )


if __name__ == "__main__":
    main()
