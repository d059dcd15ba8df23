"""The merge, its receipt, and the sequence read from it."""

import json
import os
import pickle
import random
from pathlib import Path

import pytest

from espnet3.parallel.ledger.errors import DamagedFolderError, IncompleteRunError
from espnet3.parallel.ledger.identity import hash_indices
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.ledger.merge import Results
from espnet3.parallel.ledger.split import SplitWriter
from tests.parallel.ledger.making import N, begin, expected, failure, finished, lines_of, receipt_of, value_of
from tests.parallel.ledger.programs import heard, program

VALUES = [value_of(i) for i in range(N)]


def test_a_merge_without_all_outcomes_fails_with_what_is_missing(tmp_path: Path) -> None:
    """The first missing indices are named, and neither receipt nor merged file appears."""
    items = [f"utt{i}" for i in range(N)]
    with begin(tmp_path, items) as run:
        run.append(lines_of(items, [0, 1, 5]))
        with pytest.raises(
            IncompleteRunError, match=rf"17 of {N} indices .*'utt2', 'utt3', 'utt4', 'utt6', .*, \.\.\."
        ) as caught:
            run.merge()
    assert str(caught.value) == f"{caught.value.problem}. Run again with the same arguments to compute them"
    assert not (tmp_path / "receipt.json").exists()
    assert not (tmp_path / "results.jsonl").exists()
    with pytest.raises(IncompleteRunError, match="not finished"):
        Results(tmp_path)


def test_the_receipt_is_true(tmp_path: Path) -> None:
    """Counts add up, hashes are the files', and a changed file no longer fits it."""
    with begin(tmp_path) as run:
        run.append(lines_of(range(N), range(1, N)))
        run.append_failures([(0, failure(0))])
        receipt = run.merge()
    assert receipt.planned == receipt.ok + sum(receipt.failed.values()) == N
    assert receipt_of(tmp_path) == receipt
    with open(tmp_path / "results.jsonl", "ab") as file:
        file.write(b" ")
    with pytest.raises(DamagedFolderError, match="its receipt says"):
        Results(tmp_path)


def test_outcomes_before_their_turn_change_no_byte(tmp_path: Path) -> None:
    """In whatever order outcomes came, the files are the same, failures too."""
    n, bad = 300, [0, 7, 8, 150, 299]
    items = [f"utt{i}" for i in range(n)]
    order = random.Random(0).sample(range(n), n)
    with begin(tmp_path / "mixed", items) as run:
        run.append_failures([(p, failure(items[p])) for p in bad])
        run.append(lines_of(items, [p for p in order if p not in bad]))
        receipt = run.merge()
    with begin(tmp_path / "in order", items) as run:
        run.append_failures([(p, failure(items[p])) for p in bad])
        run.append(lines_of(items, [p for p in range(n) if p not in bad]))
        assert run.merge() == receipt
    for name in ("results.jsonl", "errors.jsonl"):
        assert (tmp_path / "mixed" / name).read_bytes() == (tmp_path / "in order" / name).read_bytes()
    assert receipt.failed == {"error": len(bad)} and receipt.ok == n - len(bad)


def test_an_outcome_that_takes_anothers_place_after_its_turn_is_merged(tmp_path: Path) -> None:
    """A failure that became a result later, and a line written twice: each index once, with its result."""
    with begin(tmp_path) as run:
        run.append_failures([(3, failure(3)), (N - 1, failure(N - 1))])
        run.append(lines_of(range(N), range(4, N - 1)))
    split = SplitWriter(tmp_path, {"indices": hash_indices(range(N))})
    split.append(lines_of(range(N), [N - 1, 5, 3, 0, 1, 2]))
    split.close(done=False)
    with begin(tmp_path) as run:
        receipt = run.merge()
    assert (tmp_path / "results.jsonl").read_bytes() == expected()
    assert (receipt.ok, receipt.failed, receipt.repeated) == (N, {}, 1)


def with_spans(path: Path, items: list[str], blocks: list[range]) -> None:
    """Run a session that appends each block of consecutive positions at once."""
    with begin(path, items) as run:
        for block in blocks:
            run.append(lines_of(items, block), block)


BLOCKS = [range(200, 300), range(100), range(100, 110), range(110, 200)]
UTTERANCES = [f"utt{i}" for i in range(300)]


@pytest.mark.parametrize("change", ["a byte", "a line gone", "cut off", "another session", "the note"])
def test_a_note_that_does_not_fit_is_not_believed(tmp_path: Path, change: str) -> None:
    """Changed, cut or repeated lines are found as they are without the note; what is whole is kept."""
    with_spans(tmp_path, UTTERANCES, BLOCKS)
    file = tmp_path / "split.0/results.jsonl"
    data = file.read_bytes()
    lost: list[int] = []
    if change == "a byte":
        file.write_bytes(data.replace(b"<utt150>", b"<utt15O>"))
        lost = [150]
    elif change == "a line gone":
        file.write_bytes(b"".join(line for line in data.splitlines(True) if b"<utt42>" not in line))
        lost = [42]
    elif change == "cut off":
        file.write_bytes(data[:-5])
        lost = [199]
    elif change == "another session":
        split = SplitWriter(tmp_path, {"indices": hash_indices(UTTERANCES)})
        split.append(lines_of(UTTERANCES, range(80, 160)), range(80, 160))
        split.close(done=False)
    else:
        spans = file.with_name("spans.jsonl")
        first = spans.read_bytes().splitlines(True)[0]
        spans.write_bytes(first.replace(b'"n":200', b'"n":100') + b"not a line\n" + first)
    with begin(tmp_path, UTTERANCES) as run:
        assert list(run.left()) == lost
        run.append(lines_of(UTTERANCES, lost))
        receipt = run.merge()
    assert receipt.repeated == (80 if change == "another session" else 0)
    assert (tmp_path / "results.jsonl").read_bytes() == expected(UTTERANCES)


def test_lines_read_many_at_a_time_that_contradict_another_are_found(tmp_path: Path) -> None:
    """Two results of one item are an error, whichever of them stands in a span."""
    with_spans(tmp_path, UTTERANCES, BLOCKS)
    split = SplitWriter(tmp_path, {"indices": hash_indices(UTTERANCES)})
    split.append([encode_line(7, "utt7", "another")])
    split.close(done=False)
    with pytest.raises(DamagedFolderError, match=r"'utt7' \(position 7\) has two different results"):
        begin(tmp_path, UTTERANCES)


def test_a_merge_that_changes_nothing_leaves_the_file(tmp_path: Path) -> None:
    """A sequence read from a finished run stays valid when the run is called again."""
    finished(tmp_path)
    results = Results(tmp_path)
    finished(tmp_path)
    assert results == VALUES


def test_a_stale_receipt_goes_with_the_first_new_line(tmp_path: Path) -> None:
    """While a finished run is being added to, it does not claim to be finished."""
    finished(tmp_path)
    with begin(tmp_path) as run:
        run.append(lines_of(range(N), [0]))
        assert not (tmp_path / "receipt.json").exists()


def test_200_000_results_are_merged_and_read_in_constant_memory(tmp_path: Path) -> None:
    """Resuming, merging and reading 60 MB of results takes a fraction of that in memory."""
    with program("merge_many", tmp_path / "run", 200_000) as process:
        said = json.loads(heard(process))
    assert said["size"] > 60e6
    assert said["grown"] < 20e6
    assert said["in_order"] and said["ends"] == [199_999, 100_000]


def test_long_and_many_lines_are_merged(tmp_path: Path) -> None:
    """Lines longer than any read, and more splits than files are kept open for, come out in order."""
    sizes = [5, 10_000, 3_000_000, 0, 70_000]
    spec = {"indices": hash_indices(range(125))}
    with begin(tmp_path, range(125)):
        pass
    for position in range(125):
        split = SplitWriter(tmp_path, spec)
        split.append(
            [encode_line(position, position, "x" * sizes[position % 5] if position < 10 else position)]
        )
        split.close(done=False)
    with begin(tmp_path, range(125)) as run:
        run.merge()
        assert [v if isinstance(v, int) else len(v) for v in Results(tmp_path)] == sizes * 2 + list(
            range(10, 125)
        )


def test_results_are_a_sequence(tmp_path: Path) -> None:
    """Length, indexing, slices, iteration, membership, reversal and equality are those of the list."""
    n = 100
    values = [value_of(i) for i in range(n)]
    finished(tmp_path, range(n))
    results = Results(tmp_path)
    assert len(results) == n and list(results) == values and results == values and values == results
    for at in (0, 1, 31, 32, 33, 64, 99, -1, -100):
        assert results[at] == values[at]
    for part in (
        slice(None),
        slice(3, 40),
        slice(-3, None),
        slice(None, None, -7),
        slice(50, 10),
        slice(5, 95, 31),
    ):
        assert results[part] == values[part]
    for at in (n, -n - 1):
        with pytest.raises(IndexError):
            results[at]
    assert list(reversed(results)) == values[::-1]
    assert values[7] in results and 5 not in results
    assert results != values[:-1] and results != [*values[:-1], None]
    assert results.index(values[40]) == 40
    assert repr(results) == f"<100 results in {str(tmp_path)!r}>"


def test_results_travel_and_keep_no_file_open(tmp_path: Path) -> None:
    """A pickled sequence is small and reads the same elsewhere; after reading no file is open."""
    finished(tmp_path)
    results = Results(tmp_path)
    assert results[N - 1] == VALUES[-1]
    data = pickle.dumps(results)
    assert len(data) < 500
    assert pickle.loads(data) == VALUES
    iterator = iter(results)
    next(iterator)
    del iterator
    if os.path.isdir("/proc/self/fd"):
        links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert not [link for link in links if str(tmp_path) in link]


def test_results_of_a_file_that_was_merged_again_are_an_error(tmp_path: Path) -> None:
    """A sequence never reads another run's results."""
    finished(tmp_path)
    results = Results(tmp_path)
    with begin(tmp_path, range(N + 1), resume="force") as run:
        run.append(lines_of(range(N + 1), run.left()))
        run.merge()
    with pytest.raises(DamagedFolderError, match="merged again"):
        results[0]
    assert len(Results(tmp_path)) == N + 1
