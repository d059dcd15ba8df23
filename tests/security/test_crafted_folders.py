"""A run folder that somebody else wrote: what is in it comes back as data, or is its damage in words."""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest
from click.testing import CliRunner

from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SPANS
from espnet3_parallel.runs import report
from tests.parallel.ledger.making import N, begin, expected, failure, finished, lines_of, partial

ROOT = Path(__file__).parents[2]
COMMAND = ("-c", "from espnet3_parallel.command import main; main()")
EIGHT = base64.b64encode(bytes(8)).decode()
READ = """
import sys
from espnet3.parallel.ledger.merge import Results
from espnet3.parallel.ledger.errors import DamagedFolderError
results = Results(sys.argv[1])
for position in range(len(results)):
    table = [lambda _: results.to_pandas()] if not position else []
    for read in (results.__getitem__, lambda at: results[at : at + 1], *table):
        try:
            print(position, "gave", type(read(position)))
        except DamagedFolderError as error:
            print(position, error)
"""


def array(dtype: object, shape: object, data: object = EIGHT) -> str:
    """Return the JSON of an array with these fields."""
    return json.dumps({"__type__": "numpy.array", "dtype": dtype, "shape": shape, "base64": data})


CRAFTED = {
    "pointer": array("O", [1]),
    "void": array("V8", [1]),
    "no bytes": array("<f8", [3], ""),
    "too many bytes": array("<f8", [0]),
    "empty elements": array("|S0", [10**12], ""),
    "negative length": array("<f8", [-1]),
    "length beyond memory": array("<f8", [2**62, 4]),
    "not Unicode": array("<U1", [2], base64.b64encode(b"\xff\xff\xff\x7f" * 2).decode()),
    "scalar pointer": json.dumps({"__type__": "numpy.scalar", "dtype": "O", "base64": EIGHT}),
    "base64 of other letters": array("<f8", [1], "é" * 12),
    "field missing": '{"__type__":"numpy.array","dtype":"<f8"}',
    "field more": '{"__type__":"float","value":"nan","more":1}',
    "number as text": '{"__type__":"float","value":"1_0"}',
    "key twice": '{"__type__":"dict","items":[[1,1],[true,2]]}',
    "tag of a list": '{"__type__":[]}',
    "deep": '{"__type__":"tuple","items":[' * 400 + "1" + "]}" * 400,
    "deeper": "[" * 200_000,
    "NaN": "NaN",
    "long number": "9" * 5000,
    "no JSON": "{",
}


def put(folder: Path, name: str, lines: Sequence[bytes]) -> None:
    """Put lines in the place of a merged file's first ones, and write a receipt that fits."""
    rest = (folder / name).read_bytes().splitlines(keepends=True)[len(lines) :]
    (folder / name).write_bytes(b"".join([*lines, *rest]))
    receipt = json.loads((folder / RECEIPT).read_bytes())
    data = (folder / RESULTS).read_bytes()
    receipt |= {"results_bytes": len(data), "results_sha256": hashlib.sha256(data).hexdigest()}
    (folder / RECEIPT).write_text(json.dumps(receipt))


def called(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a Python command, which may crash."""
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_crafted_result_is_damage_in_words(tmp_path: Path) -> None:
    """However a result is read, one that no run writes ends in an error with file and line, and never in memory."""
    finished(tmp_path, range(len(CRAFTED)))
    lines = [b'{"index":%d,"result":%b}\n' % (at, text.encode()) for at, text in enumerate(CRAFTED.values())]
    put(tmp_path, RESULTS, lines)
    done = called("-c", READ, tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = [(at, f"{RESULTS}, line {at + 1} is damaged") for at in range(len(CRAFTED)) for _ in "12"]
    said = done.stdout.splitlines()  # as a table once
    for line, (at, words) in zip(said, [wanted[0], *wanted], strict=True):
        assert line.startswith(f"{at} ") and words in line, (list(CRAFTED)[at], line)


@pytest.mark.parametrize(
    "facts", ["5", '{"n":0,"index":0,"type":1,"message":2}'], ids=["no object", "wrong types"]
)
def test_a_crafted_failure_is_damage_in_words(facts: str, tmp_path: Path) -> None:
    """Results and report name the line of a merged failure that is none, and show no traceback."""
    with begin(tmp_path) as run:
        run.append(lines_of(range(N), range(1, N)))
        run.append_failures([(0, failure(0))])
        run.merge()
    put(tmp_path, ERRORS, [facts.encode() + b"\n"])
    read = "import sys; from espnet3.parallel.ledger.merge import Results; Results(sys.argv[1]).failures"
    for command in (["-c", read, tmp_path], [*COMMAND, "report", tmp_path, "-o", "-"]):
        done = called(*command)
        assert done.returncode == 1
        assert f"{ERRORS}, line 1 is damaged" in done.stderr, done.stderr


CRAFTED_SPLIT = {
    "failure of other types": (ERRORS, '{"n":3,"index":3,"failure":{"type":1}', "errors.jsonl, line 1 is damaged"),
    "failure of a pointer": (
        ERRORS, '{"n":3,"index":3,"failure":' + array("O", [1]), "errors.jsonl, line 1 is damaged",
    ),
    "long position": (RESULTS, '{"n":' + "9" * 5000 + ',"index":3,"result":1', ""),
    "no index": (RESULTS, '{"n":3,"index":{,"result":1', ""),
    "deep index": (RESULTS, '{"n":3,"index":' + "[" * 100_000 + ',"result":1', ""),
    "span of a terabyte": (SPANS, '{"n":0,"items":64,"offset":0,"size":1000000000000000,"checksum":1', ""),
    "span of nothing": (SPANS, '{"n":0', ""),
}  # fmt: skip


@pytest.mark.parametrize(("name", "head", "said"), CRAFTED_SPLIT.values(), ids=CRAFTED_SPLIT)
def test_crafted_lines_of_a_split_are_damage(name: str, head: str, said: str, tmp_path: Path) -> None:
    """A line whose checksum is right and that no run writes is left out or named; a merge needs no memory for it."""
    partial(tmp_path, range(3))
    line = b'%b,"crc":%d}\n' % (head.encode(), crc32(head.encode()))
    file = tmp_path / "split.0" / name
    file.write_bytes((file.read_bytes() if file.exists() else b"") + line)
    (tmp_path / "split.0/done").unlink()
    number = file.read_bytes().count(b"\n")
    said = said.replace("line 1", f"line {number}")
    if said:
        with pytest.raises(DamagedFolderError, match=said):
            finished(tmp_path)
    else:
        assert finished(tmp_path) == expected()
    done = CliRunner().invoke(report, [str(tmp_path), "-o", "-"])
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_drawn_lines_give_values_or_damage() -> None:
    """Thousands of lines from a seed, with every tag and field changed, end in a value or in words."""
    done = called("-m", "tests.security.fuzz", "--lines", 2000, "--seed", 20261125)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.startswith("2000 lines of seed 20261125: ")
