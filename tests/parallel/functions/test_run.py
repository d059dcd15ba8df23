"""`espnet3.parallel.run`: a function and items, without a provider and a runner of one's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    ChangedRunError,
    ConfigError,
    ItemError,
    ItemFailure,
    SignatureError,
    run,
    set_parallel,
)
from espnet3.parallel.views.replaying import Replay
from tests.parallel.functions.named import drawn, scaled, setup


@pytest.fixture(autouse=True)
def _here() -> None:
    set_parallel(None)


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


def test_on_workers_it_is_the_same() -> None:
    """Two workers give the same list, of a closure whose env a lambda builds."""
    set_parallel({"env": "local", "n_workers": 2})
    try:
        found = quietly(times(4), range(50), setup=lambda: {"scale": 5})
        assert found == [20 * i for i in range(50)]
    finally:
        set_parallel(None)


def test_failures_and_options_are_those_of_a_runner() -> None:
    """A failed item stops the run, or is recorded; a seed makes draws the same; a wrong option is named."""
    with pytest.raises(ItemError, match="item 7 failed"):
        quietly(scaled, range(10), setup=setup)
    found = quietly(scaled, range(10), setup=setup, on_error="record")
    assert isinstance(found[7], ItemFailure) and found[8] == 24
    assert quietly(drawn, range(4), seed=1) == quietly(
        drawn, range(4), seed=1, item_cost=lambda item: -item + 4
    )
    with pytest.raises(TypeError, match="on_error"):
        quietly(scaled, range(3), on_eror="record")


def test_a_folder_is_that_of_the_same_function_and_env(tmp_path: Path) -> None:
    """The same call resumes; another env, another function or another captured value is refused."""
    out = tmp_path / "run"
    assert list(quietly(scaled, range(4), env={"scale": 2}, output_dir=out)) == [0, 2, 4, 6]
    assert list(quietly(scaled, range(4), env={"scale": 2}, output_dir=out)) == [0, 2, 4, 6]
    with pytest.raises(ChangedRunError, match="scale"):
        quietly(scaled, range(4), env={"scale": 3}, output_dir=out)
    with pytest.raises(ChangedRunError, match="drawn"):
        quietly(drawn, range(4), output_dir=out)
    assert (
        "espnet3.parallel" not in (out / "run.json").read_text().partition('"code"')[2].partition("origin")[0]
    )
    quietly(times(2), range(4), output_dir=tmp_path / "closed")
    with pytest.raises(ChangedRunError):
        quietly(times(3), range(4), output_dir=tmp_path / "closed")


def test_it_can_be_detached_and_replayed(tmp_path: Path) -> None:
    """Jobs import the function, and the setup, by name; so does a replay."""
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1}})
    places = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    detached = quietly(scaled, range(8), on_error="record", async_mode=True, setup=setup, **places)
    try:
        assert detached.wait(600).done
    finally:
        if detached.status().alive:
            detached.cancel(grace=0.2)
    results = detached.merge()
    assert results[6] == 18 and isinstance(results[7], ItemFailure)
    again = Replay(tmp_path / "run")
    assert again.differences == ()
    assert again(6).same and again(7).same and isinstance(again(7).error, ValueError)


def test_what_is_no_function_or_no_env_is_refused() -> None:
    """Each mistake is an error that says what to give, before any item has run."""
    with pytest.raises(SignatureError, match=r"into env=\{\.\.\.\}"):
        quietly(partial(scaled, scale=2), range(3))
    with pytest.raises(ConfigError, match="leave one of them out"):
        quietly(scaled, range(3), env={"scale": 2}, setup=setup)
    with pytest.raises(ConfigError, match="env must be a mapping"):
        quietly(scaled, range(3), env=[2])
    with pytest.raises(SignatureError, match="scale"):
        quietly(scaled, range(3))
