"""A user's mistakes: each is a clear error before the first item has run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    BaseRunner,
    BatchLengthError,
    ConfigError,
    EnvConflictError,
    EnvTypeError,
    SignatureError,
    get_client,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.parallel.faults.workloads import BadProvider, Provider, SquareFiles, TouchFile, touch

# --- the configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"env": "slrum"}, ["slrum", "did you mean", "slurm"]),
        ({"env": 3}, ["env", "3"]),
        ({"n_workers": 0}, ["n_workers", "0", "positive"]),
        ({"n_workers": -1}, ["n_workers", "-1", "positive"]),
        ({"n_workers": "4x"}, ["n_workers", "4x", "positive"]),
        ({"n_workers": 2.5}, ["n_workers", "2.5", "positive"]),
        ({"n_workers": True}, ["n_workers", "positive"]),
        (
            {"options": {"threads_per_wroker": 2}},
            ["threads_per_wroker", "did you mean", "threads_per_worker"],
        ),
        ({"options": {"queue": "gpu"}}, ["queue", "belongs to", "slurm", "pbs", "not to local"]),
        ({"options": {"account": "me"}}, ["account", "belongs to", "slurm", "not to local"]),
        ({"options": {"walltime": "01:00:00"}}, ["walltime", "belongs to", "slurm", "pbs", "not to local"]),
        ({"devices": 2}, ["devices", "belongs to trainer"]),
        ({"strategy": "ddp"}, ["strategy", "belongs to trainer"]),
        ({"options": {"devices": 2}}, ["devices", "belongs to trainer"]),
        ({"setup_timeout": -1}, ["setup_timeout", "-1"]),
        ({"start_timeout": "soon"}, ["start_timeout", "soon"]),
        ("local", ["mapping", "local"]),
        ([{"env": "local"}], ["mapping", "list"]),
    ],
    ids=str,
)
def test_configuration(config: Any, words: list[str]) -> None:
    """A wrong `parallel` block is refused by every door, with the place, the value and the fix."""
    if isinstance(config, dict):
        config = {"env": "local", "n_workers": 2, **config}
    for door in (set_parallel, lambda c: get_client(c).__enter__()):
        with pytest.raises(ConfigError) as caught:
            door(config)
        text = str(caught.value).lower()
        for word in words:
            assert word.lower() in text, text


def test_every_problem_is_in_one_message() -> None:
    """All that is wrong in a block is said at once."""
    with pytest.raises(ConfigError) as caught:
        set_parallel({"env": "local", "n_workers": 0, "devices": 2, "options": {"queue": "gpu"}})
    for word in ("n_workers", "devices", "queue", "3 problems"):
        assert word in str(caught.value)


# --- the runner -------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["inline", "workers"], scope="class")
def _workers(request: pytest.FixtureRequest) -> None:
    """Run the tests of a class in this process and on two workers."""
    if request.param == 2:
        request.getfixturevalue("two_workers")


@contextlib.contextmanager
def refused(folder: Path, kind: type[BaseException], *words: str) -> Any:
    """Expect an error of a kind that has some words, with no item run."""
    with pytest.raises(kind) as caught:
        yield str(folder / "ran")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (folder / "ran").exists(), "an item has run"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": "7"}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"on_error": "ignore"}, "on_error"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": None}, "max_retries"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_failures": -1}, "max_failures"),
        ({"max_failures": "few"}, "max_failures"),
        ({"max_failures": float("nan")}, "max_failures"),
        ({"setup_timeout": -1}, "setup_timeout"),
        ({"setup_timeout": "1s"}, "setup_timeout"),
        ({"provider": None}, "provider"),
        ({"provider": Provider}, "provider"),
        ({"provider": {"path": "x"}}, "provider"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arguments_of_a_runner(options: dict[str, Any], word: str, folder: Path) -> None:
    """A wrong argument of a runner is an error that names it and its value, when the runner is made or called."""
    kinds = (ConfigError, TypeError)
    with refused(folder, kinds, word) as path:  # type: ignore[arg-type]  # a tuple is as good
        options = {"provider": Provider({"path": path}), **options}
        TouchFile(options.pop("provider"), progress=False, **options)(range(10))


@pytest.mark.parametrize("name", ["forward", "batch_forward", "write_record"])
def test_async_functions(name: str) -> None:
    """A runner's function that is a coroutine function is refused when the class is defined."""

    async def later(*_: Any, **__: Any) -> None:
        """Never awaited."""

    with pytest.raises(SignatureError, match=rf"Wrong\.{name} must be a plain function"):
        type("Wrong", (BaseRunner,), {name: staticmethod(later)})


def test_forward_that_is_not_static() -> None:
    """A `forward` with `self` is refused when its class is defined."""
    with pytest.raises(SignatureError, match=r"Wrong\.forward must be static"):

        class Wrong(BaseRunner):
            def forward(self, idx: int) -> int:
                return idx


def test_a_provider_that_lacks_its_method() -> None:
    """A provider without `build_env_local` cannot be made."""
    from espnet3.parallel import EnvironmentProvider

    class Empty(EnvironmentProvider):
        pass

    with pytest.raises(TypeError, match="build_env_local"):
        Empty({})


@pytest.mark.usefixtures("_workers")
class TestBeforeTheFirstItem:
    """Mistakes that show when a run starts."""

    def test_indices_that_are_none(self, folder: Path) -> None:
        """`None` in place of the indices is a `TypeError` that speaks of indices."""
        with refused(folder, TypeError, "indices") as path:
            TouchFile(Provider({"path": path}), progress=False)(None)

    def test_indices_that_are_a_number(self, folder: Path) -> None:
        """A number in place of the indices is a `TypeError` that speaks of indices."""
        with refused(folder, TypeError, "indices") as path:
            TouchFile(Provider({"path": path}), progress=False)(10)

    @pytest.mark.parametrize("function", [parallel_map, lambda *a, **k: list(parallel_for(*a, **k))])
    def test_data_that_is_none(self, function: Callable[..., Any], folder: Path) -> None:
        """`None` in place of the data of a function is a `TypeError`."""
        with refused(folder, TypeError, "iterable") as path:
            function(touch, None, path=path)

    @pytest.mark.parametrize("function", [parallel_map, lambda *a, **k: list(parallel_for(*a, **k))])
    def test_what_is_no_function(self, function: Callable[..., Any]) -> None:
        """Something that cannot be called is a `TypeError` that shows it."""
        with pytest.raises(TypeError, match="not callable"):
            function("touch", range(3))

    def test_an_env_that_is_no_dict(self, folder: Path) -> None:
        """A provider that returns a list is an `EnvTypeError`, which is a `ValueError`."""
        with refused(folder, EnvTypeError, "list"):
            TouchFile(BadProvider("listing_env"), progress=False)(range(10))

    def test_a_keyword_that_the_env_lacks(self, folder: Path) -> None:
        """A parameter of `forward` that the env does not hold is named, with what the env has."""
        with refused(folder, SignatureError, "'path'", "pfad") as path:
            TouchFile(Provider({"pfad": path}), progress=False)(range(10))

    def test_a_keyword_that_the_env_lacks_with_files(self, folder: Path) -> None:
        """The same in a run with writers of its own, before any file is opened."""
        with refused(folder, SignatureError, "'fault'", "wrong"):
            SquareFiles(Provider({"wrong": 1}), progress=False, output_dir=folder / "out")(range(10))
        assert not list(folder.glob("out/split.*/*.txt"))

    def test_a_keyword_of_a_hook_that_the_env_lacks(self, folder: Path) -> None:
        """A hook's parameter that the env does not hold is named before the first item, too."""

        class Files(TouchFile):
            @staticmethod
            def write_record(writers: Any, result: Any, state: dict[str, Any], table: Any) -> None:
                """Write nothing."""

        with refused(folder, SignatureError, "'table'") as path:
            Files(Provider({"path": path}), progress=False, output_dir=folder / "out")(range(10))

    @pytest.mark.parametrize("function", [parallel_map, lambda *a, **k: list(parallel_for(*a, **k))])
    def test_a_keyword_that_the_env_has_too(self, function: Callable[..., Any], folder: Path) -> None:
        """A keyword of the caller's that is a name of the env is a `ValueError` that names it."""
        with refused(folder, EnvConflictError, "'path'") as path:
            function(touch, range(10), setup_fn=lambda: {"path": path}, path=path)

    def test_a_keyword_that_fits_no_parameter(self, folder: Path) -> None:
        """A keyword that the function does not take is named."""
        with refused(folder, SignatureError, "'colour'") as path:
            parallel_map(touch, range(10), path=path, colour="red")

    @pytest.mark.parametrize("length", [3, 5, 0, None])
    def test_batches_of_the_wrong_length(self, length: int | None, folder: Path) -> None:
        """`batch_forward` that returns another number of results is a `ValueError`, and nothing is reported."""

        class Wrong(TouchFile):
            @staticmethod
            def batch_forward(indices: list[int], path: str) -> Any:
                return None if length is None else [1] * length

        for on_error in ("raise", "record"):
            with pytest.raises(BatchLengthError, match="one result per index"):
                runner = Wrong(Provider({"path": "x"}), batch_size=4, progress=False, on_error=on_error)
                runner(range(8))
            assert runner.summary is None

    @pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, "much", None])
    def test_costs_that_are_no_numbers(self, cost: Any, folder: Path) -> None:
        """A cost that is not a finite number, 0 or more, is an error that names `item_cost` and the item."""

        class Costly(TouchFile):
            @staticmethod
            def item_cost(idx: int) -> Any:
                return cost if idx == 7 else 1.0

        with refused(folder, ConfigError, "item_cost(7)") as path:
            Costly(Provider({"path": path}), progress=False)(range(10))

    def test_an_item_that_cannot_travel(self, folder: Path, request: pytest.FixtureRequest) -> None:
        """Data that cannot be sent to a worker is an error that names the item."""
        import threading

        if "inline" in request.node.name:
            assert len(parallel_map(id, [threading.Lock()])) == 1
            return
        with pytest.raises((TypeError, ValueError)) as caught:
            parallel_map(id, [1, 2, threading.Lock(), 4])
        text = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert "item 2" in text

    def test_files_without_a_folder(self, folder: Path) -> None:
        """A run with writers and no `output_dir` is refused."""
        with refused(folder, ConfigError, "output_dir"):
            SquareFiles(Provider({"fault": "leave", "at": ()}), progress=False)(range(10))
