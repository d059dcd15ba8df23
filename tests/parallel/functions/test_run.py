"""`espnet3.parallel.run`: a function and items, without a provider and a runner of one's own."""

import json
import operator
import os
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest

from espnet3.parallel import (
    BaseRunner,
    ChangedRunError,
    ConfigError,
    EnvConflictError,
    ItemError,
    ItemFailure,
    SignatureError,
    get_parallel_config,
    run,
    set_parallel,
)
from espnet3.parallel.views.replaying import Replay, index_of
from tests.parallel.functions.named import drawn, scaled, setup, shifted


def quietly(fn: Any, items: Any, **options: Any) -> Any:
    return run(fn, items, progress=False, **options)


def times(k: int) -> Any:
    def multiply(item: int, scale: int = 1) -> int:
        return item * k * scale

    return multiply


def test_a_function_and_items_give_a_list() -> None:
    """Without anything else it is a list in the order of the items; lambdas and builtins do too."""
    assert quietly(lambda x: x + 1, [3, 1]) == [4, 2]
    assert quietly(len, ["a", "bb"]) == [1, 2]


def test_what_it_needs_is_given_by_name() -> None:
    """An env is given as it is, or built once by `setup`."""
    assert quietly(scaled, range(3), env={"scale": 2}) == [0, 2, 4]
    assert quietly(scaled, range(3), setup=setup) == [0, 3, 6]


def test_arguments_of_the_function_are_keywords_too() -> None:
    """A keyword that is not an argument of run is one of the function; a name of neither is an error."""
    assert quietly(scaled, range(3), scale=2) == [0, 2, 4]
    with pytest.raises(
        TypeError, match="neither run nor scaled has an argument 'scal'. Did you mean 'scale'"
    ):
        quietly(scaled, range(3), scal=2)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_keywords_join_what_setup_returns(n_workers: int, tmp_path: Path) -> None:
    """They are given to each call beside the resources, count in a folder, and none may be a resource's name."""
    how = {"setup": setup, "n_workers": n_workers, "output_dir": tmp_path / "run"}
    assert quietly(shifted, range(3), shift=2, setup=setup, n_workers=n_workers) == [2, 5, 8]
    assert list(quietly(shifted, range(3), shift=2, **how)) == [2, 5, 8]
    assert list(quietly(shifted, range(3), env={"shift": 2}, **how)) == [2, 5, 8]
    with pytest.raises(ChangedRunError, match="shift: 2 -> 3"):
        quietly(shifted, range(3), shift=3, **how)
    assert Replay(tmp_path / "run")(1).same
    with pytest.raises(EnvConflictError, match="'scale' given as a keyword"):
        quietly(shifted, [tmp_path / "made"], scale=2, setup=setup, n_workers=n_workers)


class Scale:
    """A callable object, whose method is one too."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, item: int) -> int:
        """Scale an item."""
        return self.k * item

    times = __call__


CALLABLES: dict[str, Any] = {
    "partial": lambda k: partial(scaled, scale=k),
    "partial by position": lambda k: partial(operator.mul, k),
    "method": lambda k: Scale(k).times,
    "object": Scale,
    "closure": times,
}


@pytest.mark.parametrize("made", CALLABLES.values(), ids=list(CALLABLES))
def test_any_callable_is_run_and_compared_by_content(made: Any, tmp_path: Path) -> None:
    """Partials, methods, objects and closures run on workers, resume, and with other content are another run."""
    out = tmp_path / "run"
    assert list(quietly(made(2), range(3), n_workers=2, output_dir=out)) == [0, 2, 4]
    assert list(quietly(made(2), range(3), output_dir=out)) == [0, 2, 4]
    with pytest.raises(ChangedRunError):
        quietly(made(3), range(3), output_dir=out)


@pytest.mark.parametrize(
    ("fn", "options", "said"),
    [
        (BaseRunner, {}, "run takes a function, and BaseRunner is a runner"),
        (len, {"output_dir": ""}, "output_dir must be a path"),
        (len, {"output_dir": "~/run"}, "only a shell fills in ~"),
        (len, {"item_cost": 3}, "item_cost must be a function"),
        (len, {"env": "local"}, "a backend is chosen by parallel="),
        (max, {"env": {"key": len}, "key": abs}, "key: given as a keyword and in env"),
        *(
            (fn, {name: value}, f"{name} is an argument of run, and .*lambda.* has a parameter")
            for fn, name, value in (
                (lambda item, seed=0: seed, "seed", 1),
                (lambda item, n_workers=1: n_workers, "n_workers", 2),
                (lambda item, parallel=None: parallel, "parallel", {"env": "local"}),
                (lambda item, item_cost=0: item_cost, "item_cost", len),
            )
        ),
    ],
)
def test_a_slip_is_named_before_anything_is_done(
    fn: Any, options: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would run something else, or somewhere else, is an error with the fix, and leaves no folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, EnvConflictError, SignatureError), match=said):
        quietly(fn, ["a"], **options)
    assert not list(tmp_path.iterdir())


def test_the_items_own_parameter_may_have_the_name_of_an_option() -> None:
    """A function of a seed, or of a number of workers, is run over some with that option of run."""
    assert quietly(lambda seed: seed, [3], seed=1) == [3]
    assert quietly(lambda n_workers: n_workers, [3], n_workers=1) == [3]


def test_any_iterable_gives_items(tmp_path: Path) -> None:
    """A generator, the files of a folder and a column of a table do, with a class as the function."""
    (tmp_path / "a.wav").touch()
    assert quietly(float, (n for n in range(2))) == [0.0, 1.0]
    assert quietly(str, tmp_path.glob("*.wav")) == [str(tmp_path / "a.wav")]
    assert quietly(abs, pandas.Series([-1, -2])) == [1, 2]


def test_a_call_may_have_workers_of_its_own() -> None:
    """`n_workers` and `parallel` are for one call, and what is registered stays."""
    set_parallel({"env": "local", "n_workers": 1, "idle_timeout": 0})
    assert len(set(quietly(lambda item: os.getpid(), range(2)))) == 1
    block = {"env": "local", "n_workers": 1}
    for own in (
        {"n_workers": 2},
        {"parallel": {**block, "n_workers": 2}},
        {"parallel": block, "n_workers": 2},
    ):
        assert os.getpid() not in quietly(lambda item: os.getpid(), range(2), **own)
    assert get_parallel_config().n_workers == 1
    assert quietly(abs, [-1], n_workers="auto") == [1]
    with pytest.raises(
        ConfigError, match="n_workers = -1: must be a positive integer.*under local also auto"
    ):
        quietly(abs, range(2), n_workers=-1)


def test_failures_and_options_are_those_of_a_runner() -> None:
    """A failed item stops the run, or is recorded; a seed makes draws the same; a wrong option is named."""
    with pytest.raises(ItemError, match="item 7 failed"):
        quietly(scaled, range(10), setup=setup)
    found = quietly(scaled, range(10), setup=setup, on_error="record")
    assert isinstance(found[7], ItemFailure) and found[8] == 24
    assert quietly(drawn, range(4), seed=1) == quietly(
        drawn, range(4), seed=1, item_cost=lambda item: -item + 4
    )
    for wrong, right in {"on_eror": "on_error", "n_jobs": "n_workers", "timeout": "item_timeout"}.items():
        with pytest.raises(TypeError, match=f"Did you mean '{right}'"):
            quietly(scaled, range(3), **{wrong: 1})


@pytest.mark.parametrize("folder", ["", "run"])
def test_results_are_one_kind_with_and_without_a_folder(folder: str, tmp_path: Path) -> None:
    """A sequence that tells failures from the rest, has the run's figures, and becomes a table of the items."""
    where = {"output_dir": tmp_path / folder} if folder else {}
    found = quietly(scaled, [6, 7, 8], setup=setup, on_error="record", **where)
    assert [len(found), found[0], found[:1], found.ok] == [3, 18, [18], [18, 24]]
    assert [failure.index for failure in found.failures] == [7]
    assert (found.summary.items, found.summary.failed) == (3, 1)
    table = found.to_pandas()
    assert list(table.index) == [6, 7, 8] and list(table["result"])[::2] == [18, 24]
    assert table["error"][7] == "ValueError" and table["error"].count() == 1


def test_a_folder_is_that_of_the_same_function_and_env(tmp_path: Path) -> None:
    """The same call resumes; another env or another function is refused."""
    out = tmp_path / "run"
    assert list(quietly(scaled, range(4), env={"scale": 2}, output_dir=out)) == [0, 2, 4, 6]
    assert list(quietly(scaled, range(4), env={"scale": 2}, output_dir=out)) == [0, 2, 4, 6]
    with pytest.raises(ChangedRunError, match="scale"):
        quietly(scaled, range(4), env={"scale": 3}, output_dir=out)
    ordered = OrderedDict(a=1, b=2)
    for made in (lambda k: {"setup": partial(dict, scale=k)}, lambda k: {"env": {"scale": ordered}}):
        folder = tmp_path / next(iter(made(1)))
        quietly(lambda item, scale: repr(scale), range(1), **made(2), output_dir=folder)
        ordered.move_to_end(next(iter(ordered)))
        with pytest.raises(ChangedRunError):
            quietly(lambda item, scale: repr(scale), range(1), **made(3), output_dir=folder)
    with pytest.raises(ChangedRunError, match="drawn"):
        quietly(drawn, range(4), output_dir=out)
    assert (
        "espnet3.parallel" not in (out / "run.json").read_text().partition('"code"')[2].partition("origin")[0]
    )


def test_an_item_that_is_a_path_is_replayed_by_it(tmp_path: Path) -> None:
    """The path as it is typed will do, and so will the text that the run folder has; no other item is taken."""
    quietly(drawn, [tmp_path / "a", tmp_path / "b"], seed=1, output_dir=tmp_path / "run")
    for text in (str(tmp_path / "b"), json.dumps({"__type__": "path", "value": str(tmp_path / "b")})):
        assert index_of(tmp_path / "run", text) == tmp_path / "b"
    with pytest.raises(ConfigError, match=f"not among the run's 2 indices .{tmp_path}/a to"):
        index_of(tmp_path / "run", str(tmp_path / "c"))
    with pytest.raises(ItemError):
        quietly(int, ["1", "one"], output_dir=tmp_path / "stopped")
    with pytest.raises(ConfigError, match="two is not among the run's 2 indices .1 to one"):
        index_of(tmp_path / "stopped", "two")
    assert Replay(tmp_path / "run")(tmp_path / "b").same


def test_it_can_be_detached_and_replayed(tmp_path: Path) -> None:
    """Jobs import the function, and the setup, by name; so does a replay."""
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1}})
    places = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    how = {"on_error": "record", "async_mode": True, "setup": setup, "shift": 1}
    detached = quietly(shifted, range(8), **how, **places)
    try:
        assert detached.wait(600).done
    finally:
        if detached.status().alive:
            detached.cancel(grace=0.2)
    results = detached.merge()
    assert results[6] == 19 and isinstance(results[7], ItemFailure)
    again = Replay(tmp_path / "run")
    assert again.differences == ()
    assert again(6).same and again(7).same and isinstance(again(7).error, ValueError)


def test_what_is_no_function_or_no_env_is_refused() -> None:
    """Each mistake is an error that says what to give, before any item has run."""
    with pytest.raises(ConfigError, match="env must be a mapping"):
        quietly(scaled, range(3), env=[2])
    with pytest.raises(SignatureError, match="scale"):
        quietly(scaled, range(3))
    with pytest.raises(SignatureError, match=r"def of_one\(item\): return scaled\(\*item\)"):
        quietly(scaled, zip(range(3), range(3), strict=True))
    with pytest.raises(SignatureError, match="write a function that calls it"):
        quietly(Scale(2), range(3), setup=setup)
    with pytest.raises(TypeError, match="items must be an iterable with an item for each call"):
        quietly(abs, {"a": 1})
