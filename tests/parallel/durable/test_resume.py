"""Runs that are cut off and go on: on other workers, with other batches, with and without Dask."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    BaseRunner,
    ChangedRunError,
    ConfigError,
    ItemError,
    ItemFailure,
    LedgerError,
    TooManyFailuresError,
    set_parallel,
)
from tests.parallel.durable.work import Files, MergedFiles, Provider, Squares, calls
from tests.parallel.ledger.making import receipt_of

N = 300
EXPECTED = [{"square": i * i, "text": f"«{i}»"} for i in range(N)]


@contextmanager
def workers(n: int) -> Iterator[None]:
    """Run what is inside on `n` workers; one means in this process."""
    set_parallel({"env": "local", "n_workers": n})
    yield
    set_parallel(None)


def make(folder: Path, kind: type[BaseRunner] = Squares, stop: int | None = None, **kwargs: Any) -> Any:
    """Return a runner on a folder; with `stop` it fails from there on while the folder's `stop` exists."""
    config: dict[str, Any] = {"log": str(folder / "log")}
    if stop is not None:
        config["stop"] = (stop, str(folder / "stop"))
    return kind(Provider(config), output_dir=folder / "run", progress=False, **kwargs)


def cut_off(folder: Path, runner: BaseRunner, n: int = N) -> None:
    (folder / "stop").touch()
    with pytest.raises(ItemError, match="stopped at"):
        runner(range(n))
    (folder / "stop").unlink()


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 3), (1, 1)])
def test_a_run_goes_on_elsewhere_and_gives_the_same_bytes(first: int, then: int, tmp_path: Path) -> None:
    """A run begun with three workers ends in this process, and the reverse: undisturbed bytes, few repeats."""
    with workers(first):
        cut_off(tmp_path, make(tmp_path, stop=200))
    done = len((tmp_path / "run/split.0/results.jsonl").read_bytes().splitlines())
    before = calls(tmp_path / "log").total()
    with workers(then):
        results = make(tmp_path, stop=200)(range(N))
    assert results == EXPECTED
    assert calls(tmp_path / "log").total() - before == N - done
    assert receipt_of(tmp_path / "run").ok == N
    whole = make(tmp_path / "whole")
    assert whole(range(N)) == EXPECTED
    merged = (tmp_path / "run/results.jsonl").read_bytes()
    assert merged == (tmp_path / "whole/run/results.jsonl").read_bytes()


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    """A second call on a complete folder calls nothing and gives the same results."""
    first = make(tmp_path)(range(N))
    runner = make(tmp_path)
    assert runner(range(N)) == first == EXPECTED
    assert calls(tmp_path / "log").total() == N
    assert runner.summary is not None
    assert (runner.summary.items, runner.summary.kept) == (0, N)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_batch_size_may_change(batch_size: int, tmp_path: Path) -> None:
    """A run cut off without batches goes on with them."""
    cut_off(tmp_path, make(tmp_path, stop=100))
    assert make(tmp_path, stop=100, batch_size=batch_size)(range(N)) == EXPECTED


def test_with_costs_the_dearest_are_done_first_and_the_order_stays(tmp_path: Path) -> None:
    """With `item_cost` another order of work gives the same file; resumed runs too."""

    class Dear(Squares):
        def item_cost(self, idx: int) -> float:
            return idx % 17

    with workers(2):
        cut_off(tmp_path, make(tmp_path, Dear, stop=100))
        assert make(tmp_path, Dear, stop=100)(range(N)) == EXPECTED


def test_it_says_what_is_done_and_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run says so before it starts, and how much it had to do when it ends."""
    cut_off(tmp_path, make(tmp_path, stop=200))
    capsys.readouterr()
    runner = make(tmp_path, stop=200)
    runner.progress = True
    runner(range(N))
    said = capsys.readouterr().err
    assert "Squares: resuming: 200 done, 100 left" in said
    assert "100 items (200 more were done before)" in said


def test_recorded_failures_stay_until_they_are_wanted_again(tmp_path: Path) -> None:
    """`retry_failed` runs just the failed items; without it they stand in their places."""
    (tmp_path / "stop").touch()
    results = make(tmp_path, stop=290, on_error="record")(range(N))
    assert [k for k, r in enumerate(results) if isinstance(r, ItemFailure)] == list(range(290, N))
    told = [json.loads(line) for line in (tmp_path / "run/errors.jsonl").read_text().splitlines()]
    assert [line["index"] for line in told] == list(range(290, N))
    assert {"cause", "type", "message", "traceback", "attempts", "worker", "seconds"} <= told[0].keys()
    (tmp_path / "stop").unlink()
    before = calls(tmp_path / "log").total()
    again = make(tmp_path, stop=290, on_error="record")(range(N))
    assert sum(isinstance(r, ItemFailure) for r in again) == 10
    assert calls(tmp_path / "log").total() == before
    assert make(tmp_path, stop=290, on_error="record", retry_failed=True)(range(N)) == EXPECTED
    assert calls(tmp_path / "log").total() == before + 10


def test_an_item_that_stopped_a_run_is_on_disk_and_is_run_again(tmp_path: Path) -> None:
    """With `on_error="raise"` the failure is in errors.jsonl of the session, and the next call repeats it."""
    cut_off(tmp_path, make(tmp_path, stop=200))
    (line,) = (tmp_path / "run/split.0/errors.jsonl").read_text().splitlines()
    assert json.loads(line)["index"] == 200
    assert make(tmp_path, stop=200)(range(N)) == EXPECTED


@pytest.mark.parametrize(("limit", "stop"), [(5, 290), (0.02, 290)])
def test_too_many_failures_end_the_run(limit: float, stop: int, tmp_path: Path) -> None:
    """`max_failures` counts those of earlier sessions that are not run again."""
    (tmp_path / "stop").touch()
    for _ in range(2):
        with pytest.raises(TooManyFailuresError, match=f"max_failures is {limit:g}"):
            make(tmp_path, stop=stop, on_error="record", max_failures=limit)(range(N))
    (tmp_path / "stop").unlink()
    options = {"on_error": "record", "max_failures": limit, "retry_failed": True}
    assert make(tmp_path, stop=stop, **options)(range(N)) == EXPECTED


def test_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    """Fewer indices in the same folder: refused, and named; "force" keeps what is of use; False begins anew."""
    make(tmp_path)(range(N))
    with pytest.raises(
        ChangedRunError, match=r"indices: 300 indices .* -> 298 .* no longer in the list: 298, 299"
    ):
        make(tmp_path)(range(298))
    make(tmp_path, resume="force")(range(298))
    assert calls(tmp_path / "log").total() == N
    assert make(tmp_path, resume=False)(range(N)) == EXPECTED
    assert calls(tmp_path / "log").total() == 2 * N
    assert (tmp_path / "run/old.0/run.json").exists()
    with pytest.raises(ConfigError, match="resume must be"):
        make(tmp_path, resume="yes")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (range(6), range(9)),
        ([1, 5, 7], [0, 1, 2, 5, 6, 7, 8]),
        (list(range(4)), [9, *range(4)]),
        (range(0, 6, 2), [0, 1, 2, 3, 4]),
    ],
)
def test_a_list_that_has_grown_goes_on(first: Any, then: Any, tmp_path: Path) -> None:
    """New indices after or between the old ones are computed, the old ones are not; results are in the new order."""
    make(tmp_path)(first)
    results = list(make(tmp_path)(then))
    assert [one["square"] for one in results] == [index * index for index in then]
    assert calls(tmp_path / "log") == dict.fromkeys(then, 1)
    assert list(make(tmp_path)(then)) == results
    assert calls(tmp_path / "log").total() == len(then)


def test_items_that_are_in_a_list_twice_stay_where_they_are(tmp_path: Path) -> None:
    """A list with equal items that grows at its end, twice, computes the new ones alone."""
    for indices, computed in (([1, 2, 1, 3], 4), ([1, 2, 1, 3, 1, 4], 6), ([1, 2, 1, 3, 1, 4, 2], 7)):
        results = make(tmp_path)(indices)
        assert [one["square"] for one in results] == [index * index for index in indices]
        assert calls(tmp_path / "log").total() == computed


def test_a_list_in_another_order_is_another_run(tmp_path: Path) -> None:
    """The old indices must be in their order."""
    make(tmp_path)([1, 2, 3])
    with pytest.raises(ChangedRunError, match="indices: 3 indices"):
        make(tmp_path)([2, 1, 3, 4])


def test_no_indices_are_a_run_too(tmp_path: Path) -> None:
    """A run of nothing is merged, and gives nothing."""
    assert make(tmp_path)([]) == []
    assert make(tmp_path, MergedFiles, resume=False)([]) == ""


# --- writers of their own ---------------------------------------------------------------------------


def kept_in_shards(run: Path) -> int:
    """Count the items of shards that are done, of which there are some."""
    done = [path.parent for path in run.glob("split.*/done")]
    assert done
    return sum(len((folder / "squares.txt").read_text().splitlines()) for folder in done)


def test_a_list_that_has_grown_at_its_end_gets_shards(tmp_path: Path) -> None:
    """Shards of old items stay, and one that was cut off runs; new items get theirs, and other lists are refused."""
    cut_off(tmp_path, make(tmp_path, MergedFiles, stop=200))
    left = N + 91 - kept_in_shards(tmp_path / "run") + calls(tmp_path / "log").total()
    for indices in (range(N + 90), [*range(N + 90), 1000]):
        text = make(tmp_path, MergedFiles, stop=200)(indices)
        assert text == "".join(f"{i} {i * i}\n" for i in indices)
    assert calls(tmp_path / "log").total() == left
    with pytest.raises(ChangedRunError, match="with writer hooks a list may grow at its end"):
        make(tmp_path, MergedFiles, stop=200)(range(1, N + 90))


@pytest.mark.parametrize(("first", "then", "batch_size"), [(2, 1, None), (1, 2, 7)])
def test_shards_that_are_done_are_not_run_again(
    first: int, then: int, batch_size: int | None, tmp_path: Path
) -> None:
    """A run with hooks goes on by shard, on other workers and with other batches; files and answer are whole."""
    with workers(first):
        cut_off(tmp_path, make(tmp_path, MergedFiles, stop=200))
    kept = kept_in_shards(tmp_path / "run")
    before = calls(tmp_path / "log").total()
    runner = make(tmp_path, MergedFiles, stop=200, batch_size=batch_size)
    with workers(then):
        text = runner(range(N))
    assert text == "".join(f"{i} {i * i}\n" for i in range(N))
    assert calls(tmp_path / "log").total() - before == N - kept
    assert runner.summary is not None
    assert runner.summary.kept == kept


def test_a_runner_that_writes_its_results_keeps_none_beside(tmp_path: Path) -> None:
    """With `write_record` and no `merge` the files have the results, and the folder what became of each item."""
    cut_off(tmp_path, make(tmp_path, Files, stop=200))
    assert make(tmp_path, Files, stop=200)(range(N)) == [None] * N
    assert receipt_of(tmp_path / "run").ok == N
    texts = {
        int(file.parent.suffix[1:]): file.read_text() for file in tmp_path.glob("run/split.*/squares.txt")
    }
    assert "".join(texts[shard] for shard in sorted(texts)) == "".join(f"{i} {i * i}\n" for i in range(N))


def test_a_shard_with_a_failed_item_is_repeated_when_that_is_wanted(tmp_path: Path) -> None:
    """`retry_failed` repeats the shards that hold failed items, and no others."""
    (tmp_path / "stop").touch()
    make(tmp_path, Files, stop=299, on_error="record")(range(N))
    (tmp_path / "stop").unlink()
    before = calls(tmp_path / "log").total()
    results = make(tmp_path, Files, stop=299, on_error="record", retry_failed=True)(range(N))
    assert not results.failures
    assert 1 <= calls(tmp_path / "log").total() - before <= 5


def test_a_run_in_a_part_of_another_run_is_refused(tmp_path: Path) -> None:
    """Nothing of the other run is moved."""
    results = list(make(tmp_path)(range(4)))
    with pytest.raises(LedgerError, match="split.0 is a part of the run in"):
        make(tmp_path, shard_subdir="split.0")(range(4))
    assert list(make(tmp_path)(range(4))) == results


def test_a_shard_whose_mark_is_gone_starts_over(tmp_path: Path) -> None:
    """Without its `done` a shard is run again in an emptied folder, and no result is there twice."""
    make(tmp_path, MergedFiles)(range(N))
    shard = tmp_path / "run/split.3"
    (shard / "done").unlink()
    (shard / "squares.txt").write_text("garbage\n")
    (shard / "left over").touch()
    assert make(tmp_path, MergedFiles)(range(N)) == "".join(f"{i} {i * i}\n" for i in range(N))
    assert sorted(p.name for p in shard.iterdir()) == ["done", "squares.txt"]


@pytest.mark.parametrize("options", [{}, {"async_mode": True}], ids=["driver", "detached"])
@pytest.mark.parametrize("kind", [Squares, Files])
@pytest.mark.parametrize("subdir", ["../x", "a/../../x", "{tmp}/x", "link/x"])
def test_no_shard_subdir_leads_out_of_output_dir(
    subdir: str, kind: type[BaseRunner], options: dict[str, Any], tmp_path: Path
) -> None:
    """Neither by steps back, nor as an absolute path, nor by a link; nothing is written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/link").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="shard_subdir"):
        make(tmp_path, kind, shard_subdir=subdir.format(tmp=tmp_path), **options)(range(4))
    assert sorted(tmp_path.rglob("*")) == before
