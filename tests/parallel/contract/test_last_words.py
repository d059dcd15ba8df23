"""What a run says where it ends before its time, and of what failed: the whole story in the exception itself."""

import os
import re
import signal
import sys
import threading
import traceback

import pytest

import espnet3.parallel
from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    FolderWriteError,
    ItemError,
    ItemFailure,
    ParallelError,
    TooManyFailuresError,
    WorkerSetupError,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from tests.parallel.contract import work

NEW_PYTHON = sys.version_info >= (3, 11)
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


@pytest.mark.parametrize("stored", [False, True], ids=["in-memory", "in-a-folder"])
def test_ctrl_c_ends_with_what_is_kept(place, stored, tmp_path):
    """An interrupted run ends with the same line."""
    error = run(Interrupted, tmp_path / "run" if stored else None)
    assert type(error) is KeyboardInterrupt
    where = f" in {tmp_path / 'run'}: the same call goes on" if stored else "nothing is kept: the same call"
    assert where in last_line(error)
    assert stored or "output_dir" in last_line(error)


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


def test_the_cause_of_an_error_of_the_folder_has_none_of_our_frames(tmp_path):
    """Of the system's own error there is the line that says it, and not where this package has met it."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderWriteError) as caught:
        FailsInPlaces(work.Whole(), progress=False, output_dir=tmp_path / "file")([0])
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.__traceback__ is None


def raised_from(x):
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


# --- what is shown besides ------------------------------------------------------------------------


def shown(error):
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def foreign(text):
    """Return the frames that are not of the tests; on 3.10 two of ours are always there."""
    files = [line for line in text.splitlines() if line.startswith("  File ")]
    return [line for line in files if "/tests/" not in line and (NEW_PYTHON or "errors.py" not in line)]


def test_a_traceback_begins_with_forward(place):
    """No frame of this package stands above forward."""
    failure = FailsInPlaces(work.Whole(), on_error="record", progress=False)([0])[0]
    assert failure.traceback.count("  File ") == 1 and "in forward" in failure.traceback


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "slip",
    [
        lambda: FailsInPlaces(work.Whole(), ouput_dir="x"),
        lambda: FailsInPlaces(work.Whole(), progress=False)("abc"),
        lambda: FailsInPlaces(work.Whole(), progress=False)([0]),
        lambda: set_parallel({"n_worker": 2}),
        lambda: parallel_map(lambda x, absent: x, range(3)),
        lambda: parallel_submit(abs(3), 1),
    ],
    ids=["argument", "indices", "item", "block", "map", "submit"],
)
def test_an_explained_error_has_the_callers_lines_alone(slip, full, monkeypatch):
    """The line that is wrong is the last of the traceback; all of it is shown where ESPNET3_TRACEBACK says so."""
    monkeypatch.setenv("ESPNET3_TRACEBACK", "full" if full else "")
    with pytest.raises((ParallelError, TypeError)) as caught:
        slip()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    ours = [file for file in files if "/espnet3/parallel/" in file and "/tests/" not in file]
    assert len(ours) > 1 if full else len(ours) == (0 if NEW_PYTHON else 2)


def broken(*_):
    return {}["key"]


def broken_items():
    yield 1
    broken()


class BrokenMerge(FailsInPlaces):
    forward = staticmethod(abs)
    merge = broken


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: espnet3.parallel.run(abs, [1], item_cost=broken, progress=False),
        lambda folder: espnet3.parallel.run(abs, broken_items(), progress=False),
        lambda folder: parallel_map(abs, broken_items()),
        lambda folder: list(parallel_for(abs, broken_items())),
        lambda folder: BrokenMerge(work.Whole(), progress=False, output_dir=folder)([1]),
    ],
    ids=["item_cost", "items", "data", "stream", "merge"],
)
def test_an_error_of_code_that_is_called_for_the_user_has_the_users_lines_alone(call, tmp_path):
    """What a cost, a generator of items or a merge raises has no frame of this package; a cost says of which item."""
    with pytest.raises(KeyError) as caught:
        call(tmp_path / "run")
    assert foreign(shown(caught.value)) == []
    assert "broken" in shown(caught.value)
    if "item_cost" in shown(caught.value):
        assert note(caught.value) == "in the call item_cost(1)"


class Locked(EnvironmentProvider):
    def __init__(self, guard):
        super().__init__({})
        self.guard = guard

    def build_env_local(self):
        return {}


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (
            lambda: work.Echo(Locked({"a": threading.Lock()}), progress=False)(range(4)),
            "guard['a'] (of type lock)",
        ),
        (lambda: parallel_map(str, [1, threading.Lock()]), "item 1 of the data"),
        (lambda: parallel_submit(str, threading.Lock()), "the call str("),
    ],
    ids=["provider", "data", "call"],
)
def test_what_cannot_be_sent_is_named_without_our_frames(call, what):
    """A lock that would have to travel is an error whose note says where it is, under the caller's lines alone."""
    set_parallel({"env": "local", "n_workers": 2})
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        call()
    assert any(note.startswith(what) and "cannot be sent" in note for note in caught.value.__notes__)
    assert foreign(shown(caught.value)) == []


class Bare(EnvironmentProvider):
    def __init__(self, path):
        self.path = path

    def build_env_local(self):
        return {"factor": self.config["factor"]}


def test_a_forgotten_constructor_of_the_base_is_named():
    """A provider without a config says what its __init__ has to call; any other name is missing as in any object."""
    with pytest.raises(WorkerSetupError, match=r"'config': call super\(\).__init__\(...\) in Bare.__init__"):
        work.Times(Bare("x"), progress=False)(range(2))
    with pytest.raises(AttributeError, match="'Bare' object has no attribute 'paht'$"):
        getattr(Bare("x"), "paht")  # noqa: B009  as a typo is
