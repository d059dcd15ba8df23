"""Opening, resuming and closing a run folder."""

import json
from pathlib import Path

import pytest

from espnet3.parallel.ledger.merge import Results
from tests.parallel.ledger.making import (
    N,
    begin,
    events,
    expected,
    failure,
    finished,
    lines_of,
    partial,
    value_of,
)


def test_each_session_writes_to_a_split_of_its_own(tmp_path: Path) -> None:
    """No session appends to another's file, and one that has nothing to write leaves no split."""
    partial(tmp_path, [1])
    first = (tmp_path / "split.0/results.jsonl").read_bytes()
    partial(tmp_path, [])
    partial(tmp_path, [2])
    assert (tmp_path / "split.0/results.jsonl").read_bytes() == first
    assert sorted(p.name for p in tmp_path.glob("split.*")) == ["split.0", "split.1"]
    assert json.loads((tmp_path / "split.1/done").read_text()) == {}


def test_a_changed_run_without_a_result_starts_anew(tmp_path: Path) -> None:
    """After a mistake at the first item the mended code runs: nothing in the folder could be stale, and it is kept."""
    for number in range(3):
        with begin(tmp_path, config={"number": number}) as run:
            assert run.failed == 0
            run.append_failures([(0, failure(0))])
    assert (tmp_path / "old.0/split.0/errors.jsonl").exists() and not (tmp_path / "old.1").exists()


def test_force_keeps_the_results_of_indices_that_still_exist(tmp_path: Path) -> None:
    """After a change of the list, results move to their index's new place; what is gone is left out."""
    first, second = ["a", "b", "c", "d"], ["d", "x", "b"]
    partial(tmp_path, [0, 1, 3], first)
    with begin(tmp_path, second, resume="force") as run:
        assert list(run.left()) == [1]
        run.append(lines_of(second, [1]))
        run.merge()
        assert Results(tmp_path) == [value_of(item) for item in second]
    assert "indices: 4" in json.loads((tmp_path / "run.json").read_text())["history"][0]["forced"][0]
    with begin(tmp_path, second) as run:  # and it is the folder's run from now on
        assert list(run.left()) == []
    with begin(tmp_path, first, resume="force") as run:
        assert list(run.left()) == [2]
    twice = ["a", "a", "b"]
    with begin(tmp_path, twice, resume="force") as run:  # a result stays in its place
        assert list(run.left()) == [1]
    with begin(tmp_path, ["c", *twice], resume="force") as run:  # nobody can tell the place of one of two "a"
        assert list(run.left()) == [0, 1, 2]


def test_starting_anew_moves_the_old_run_aside(tmp_path: Path) -> None:
    """`resume=False` keeps one run in `old.0`, the last that was finished; other files stay where they are."""
    (tmp_path / "notes.txt").write_text("mine")
    finished(tmp_path)
    for number, ends in enumerate([True, True, False, False, True]):
        with begin(tmp_path, resume=False, config={"number": number}) as run:
            assert run.left() == range(N)
            run.append(lines_of(range(N), range(N)))
            if ends:
                run.merge()
        assert [each.name for each in tmp_path.glob("old.*")] == ["old.0"]
        assert len(Results(tmp_path / "old.0")) == N
    assert json.loads((tmp_path / "old.0/run.json").read_bytes())["config"] == {"number": 1}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert events(tmp_path)[0]["event"] == "started"


def test_only_a_run_that_was_replaced_is_removed(tmp_path: Path) -> None:
    """What a run.json names as such is removed where it is an `old.<n>` with a run in it, and nothing else is."""
    finished(tmp_path)
    (tmp_path / "old.0").mkdir()
    (tmp_path / "old.0" / "mine").touch()
    (tmp_path / "kept").mkdir()
    for named in ("old.0", "kept", "../kept", "."):
        said = json.loads((tmp_path / "run.json").read_bytes())
        (tmp_path / "run.json").write_text(json.dumps({**said, "aside": named}))
        finished(tmp_path, resume=False)
    assert (tmp_path / "old.0/mine").exists() and (tmp_path / "kept").exists()
    assert sorted(each.name for each in tmp_path.glob("old.*")) == [f"old.{number}" for number in range(5)]


def test_files_that_are_no_run_are_moved_aside(tmp_path: Path) -> None:
    """A foreign results.jsonl is never overwritten, and a warning says where it is."""
    (tmp_path / "results.jsonl").write_text("mine")
    with pytest.warns(UserWarning, match=r"and no run: they are in .*old\.0 now"):
        assert finished(tmp_path) == expected()
    assert (tmp_path / "old.0/results.jsonl").read_text() == "mine"
