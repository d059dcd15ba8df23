"""A user's mistakes: each is a clear error before the first item has run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    BaseRunner,
    ConfigError,
    SignatureError,
    get_client,
    set_parallel,
)
from tests.parallel.faults.workloads import Provider, SquareFiles, TouchFile

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


@pytest.mark.parametrize("name", ["forward", "batch_forward", "write_record"])
def test_async_functions(name: str) -> None:
    """A runner's function that is a coroutine function is refused when the class is defined."""

    async def later(*_: Any, **__: Any) -> None:
        """Never awaited."""

    with pytest.raises(SignatureError, match=rf"Wrong\.{name} must be a plain function"):
        type("Wrong", (BaseRunner,), {name: staticmethod(later)})


@pytest.mark.usefixtures("_workers")
class TestBeforeTheFirstItem:
    """Mistakes that show when a run starts."""

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

    def test_files_without_a_folder(self, folder: Path) -> None:
        """A run with writers and no `output_dir` is refused."""
        with refused(folder, ConfigError, "output_dir"):
            SquareFiles(Provider({"fault": "leave", "at": ()}), progress=False)(range(10))
