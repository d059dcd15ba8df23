"""What a run says where it ends before its time, and of what failed: the whole story in the exception itself."""

import os
import re
import signal
import sys
import threading
import traceback

import pytest

from espnet3.parallel import (
    BaseRunner,
    ConfigError,
    EnvironmentProvider,
    FolderWriteError,
    ItemError,
    ItemFailure,
    ParallelError,
    TooManyFailuresError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from espnet3.parallel import run as run_function
from tests.parallel.contract import work

BAD = {3: ValueError("bad\nvalue"), 5: ValueError("another"), 6: KeyError("c")}


class Fails(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx in BAD:
            raise BAD[idx]
        return idx


class FailsInPlaces(BaseRunner):
    """Fails in an expression of several parts."""

    @staticmethod
    def forward(idx):
        table = {"a": 1}
        return len(table) + table[f"key {idx}"] + 1


class Interrupted(BaseRunner):
    """Has its driver interrupted in its sixth item, as Ctrl-C does, and does not finish that."""

    @staticmethod
    def forward(idx, factor):
        if idx == 5:
            os.kill(factor, signal.SIGINT)
            threading.Event().wait()
        return idx


def last_line(error):
    """Return the last line of what Python prints of an exception."""
    return (
        traceback.format_exception(error)[-1].rstrip().splitlines()[-1]
        if sys.version_info >= (3, 11)
        else note(error)
    )


def note(error):
    """Return the last note of an exception."""
    return error.__notes__[-1]


def run(runner, folder=None, items=range(10), **options):
    """Run items, and return the exception that this ends with."""
    provider = work.Provider({"factor": os.getpid()})
    with pytest.raises(BaseException) as caught:  # noqa: PT011  KeyboardInterrupt too
        runner(provider, progress=False, output_dir=folder, **options)(items)
    return caught.value


def test_an_item_error_ends_with_what_is_kept(place, tmp_path):
    """The last line says how many items are done, where they are kept and what the same call does."""
    folder = tmp_path / "run"
    error = run(Fails, folder)
    assert isinstance(error, ItemError)
    kept = re.fullmatch(
        r"stopped with (\d+) of 10 items done, which are kept in (.*): "
        r"the same call goes on with the (\d+) left, the failed item among them",
        last_line(error),
    )
    assert kept[2] == str(folder)
    assert int(kept[1]) + int(kept[3]) == 10
    assert len((folder / "split.0" / "results.jsonl").read_text().splitlines()) == int(kept[1])


def test_an_error_without_a_folder_ends_with_the_way_to_keep_results(place):
    """Without a folder the last line says that nothing is kept, and what would keep it."""
    line = last_line(run(Fails))
    assert re.match(
        r"stopped with \d+ of 10 items done, and nothing is kept: the same call starts from the", line
    )
    assert "output_dir" in line


@pytest.mark.parametrize("stored", [False, True], ids=["in-memory", "in-a-folder"])
def test_ctrl_c_ends_with_what_is_kept(place, stored, tmp_path):
    """An interrupted run ends with the same line."""
    error = run(Interrupted, tmp_path / "run" if stored else None)
    assert type(error) is KeyboardInterrupt
    where = f" in {tmp_path / 'run'}: the same call goes on" if stored else "nothing is kept: the same call"
    assert where in last_line(error)


def test_too_many_failures_are_listed_by_type(place, tmp_path):
    """The error counts the failures of each type, with one message and index, and carries their records."""
    error = run(Fails, tmp_path / "run", on_error="record", max_failures=2)
    assert type(error) is TooManyFailuresError
    text = str(error)
    assert text.startswith("3 of 10 items failed, and max_failures is 2\n")
    assert {kind: count for kind, (count, _) in error.failures.items()} == {"ValueError": 2, "KeyError": 1}
    for kind, (count, failure) in error.failures.items():  # of two it is the one that arrived first
        message = str(BAD[failure.index]).replace("\n", " ")
        assert f"  {count} x {kind}, the first in item {failure.index}: {message}" in text
    assert "the same call stops again; a higher max_failures" in last_line(error)
    again = run(Fails, tmp_path / "run", on_error="record", max_failures=2)
    assert "3 in earlier sessions; retry_failed=True runs them again" in str(again)


def test_a_finished_run_says_what_failed_in_it(place, tmp_path, capsys):
    """The last line of a call that had nothing to do says how many items failed, and how they are run again."""
    runner = Fails(work.Whole(), output_dir=tmp_path / "run", on_error="record")
    for _ in range(2):
        capsys.readouterr()
        runner(range(10))
    printed = capsys.readouterr().err
    assert "all 10 items were done before, 3 of them failed: retry_failed=True runs those again" in printed
    assert (runner.summary.kept, runner.summary.kept_failed) == (10, 3)


def test_a_traceback_begins_with_forward_and_points_at_the_fault(place):
    """No frame of this package stands above forward, and the carets are under what raised."""
    failure = FailsInPlaces(work.Whole(), on_error="record", progress=False)([0])[0]
    assert failure.traceback.count("  File ") == 1 and "in forward" in failure.traceback
    error = run(FailsInPlaces)
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if sys.version_info >= (3, 11):
        line, carets = failure.traceback.splitlines()[2:4]
        assert line[carets.index("~") : carets.rindex("^") + 1] == 'table[f"key {idx}"]'
        assert carets in shown
    stray = [
        text
        for text in shown.splitlines()
        if set(text.strip()) == {"^"} and text in shown.split("KeyError")[0]
    ]
    assert stray == []


class Explains(BaseRunner):
    """Ends with an error of this package that its own code has raised."""

    @staticmethod
    def forward(idx):
        return idx

    def write_outputs(self, indices, results):
        raise ConfigError("no place for these")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("call", ["runner", "own code", "map"])
def test_the_traceback_of_an_explained_error_has_the_callers_lines_alone(call, full, monkeypatch):
    """Our frames between the call and the error are left out, those of a runner's own code are not."""
    monkeypatch.setenv("ESPNET3_TRACEBACK", "full" if full else "")
    with pytest.raises(ParallelError) as caught:
        if call == "map":
            parallel_map(lambda x, absent: x, range(3))
        else:
            (Explains if call == "own code" else FailsInPlaces)(work.Whole(), progress=False)([0])
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    ours = [file for file in files if "/espnet3/parallel/" in file and "/tests/" not in file]
    assert len(ours) > 1 if full else len(ours) == 1
    assert files.count(__file__) == (2 if call == "own code" else 1)


class Given:
    """Makes no env."""


def in_a_with_block():
    """Open a client of an unknown env."""
    with get_client({"env": "lcoal"}):
        pass


SLIPS = {
    "argument": lambda: FailsInPlaces(work.Whole(), ouput_dir="x"),
    "no provider": lambda: FailsInPlaces(Given(), progress=False)([0]),
    "indices": lambda: FailsInPlaces(work.Whole(), progress=False)("abc"),
    "block": lambda: set_parallel({"n_worker": 2}),
    "client": in_a_with_block,
    "no function": lambda: parallel_map(abs(3), [1]),
    "for": lambda: parallel_for(abs(3), [1]),
    "submit": lambda: parallel_submit(abs(3), 1),
    "run": lambda: run_function(3, [1]),
    "no env": type("Mine", (EnvironmentProvider,), {}),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=list(SLIPS))
def test_so_has_that_of_a_slip_in_any_call(slip):
    """What is refused before a run, of whatever type, shows the line that is wrong and one of ours."""
    with pytest.raises((ParallelError, TypeError)) as caught:
        slip()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert len([file for file in files if "/espnet3/parallel/" in file and "/tests/" not in file]) == 1


def test_the_cause_of_an_error_of_the_folder_has_none_of_our_frames(tmp_path):
    """Of the system's own error there is the line that says it, and not where this package has met it."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderWriteError) as caught:
        FailsInPlaces(work.Whole(), progress=False, output_dir=tmp_path / "file")([0])
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.__traceback__ is None


def test_so_has_that_of_ctrl_c(place):
    """What Python prints of a Ctrl-C in a wait of ours has the call, and not the waiting."""
    with pytest.raises(KeyboardInterrupt) as caught:
        Interrupted(work.Provider({"factor": os.getpid()}), progress=False)(range(20))
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert files[0] == __file__
    assert len([file for file in files if "/espnet3/parallel/" in file and "/tests/" not in file]) == 1


def raised_from(x):
    """Raise an error that has a cause."""
    try:
        return {}[x]
    except KeyError as error:
        raise ValueError("no such item") from error


def test_an_error_with_a_cause_is_shown_with_both_places(place):
    """What Python prints of an item's error has the lines that raised it and its cause, on a worker as here."""
    with pytest.raises(ValueError, match="no such item") as caught:
        parallel_map(raised_from, [1])
    shown = "".join(traceback.format_exception(ValueError, caught.value, caught.value.__traceback__))
    assert "return {}[x]" in shown
    assert 'raise ValueError("no such item") from error' in shown
    assert type(caught.value.__cause__) is KeyError


def test_a_failure_is_shown_in_one_line(place):
    """The repr of a failure names item, error and worker in a line; messages say "worker 1", and not "1"."""
    (failure,) = Fails(work.Whole(), on_error="record", progress=False)([3])
    where = "in this process" if place == 1 else r"on worker \d"
    assert re.fullmatch(rf"<ItemFailure: item 3, ValueError: bad value, {where}>", repr(failure))
    assert isinstance(failure, ItemFailure) and failure.message == "bad\nvalue"
    assert re.match(rf"item 3 failed {where}: ValueError: bad", str(run(Fails)))
    with pytest.raises(KeyError) as caught:
        parallel_map(Fails.forward, [6])
    assert re.fullmatch(rf"in item 0 \(6\), {where}", note(caught.value))
