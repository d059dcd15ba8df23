"""Hooks that fail, and mistakes in them: an error that says which hook and why, in any policy, and no hang."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espnet3.parallel import BaseRunner, ItemFailure, ParallelError, PoisonItemError, SignatureError
from tests.parallel.faults.workloads import BadHook, FailsThenEnds, Provider, TouchFile


@pytest.mark.usefixtures("two_workers")
class TestHooks:
    """A run of ten shards, one item each, the fourth of which fails."""

    @pytest.mark.parametrize(
        ("hook", "act", "words"),
        [
            ("open_writers", "system_exit", "wants to leave"),
            ("write_record", "bad_value", "bad item"),
            ("close_writers", "unpicklable_error", "it holds a lock"),
        ],
    )
    def test_that_raises(self, hook: str, act: str, words: str, folder: Path) -> None:
        """A hook that raises stops the run; the error shows the hook, its exception and where it was."""
        provider = Provider({"hook": hook, "act": act})
        runner = BadHook(provider, progress=False, on_error="record", output_dir=folder / "out")
        with pytest.raises(ParallelError) as caught:
            runner(list(np.ones((10, 2))))  # indices whose == is neither true nor false
        text = str(caught.value)
        assert words in text and "Shard(" not in text
        shown = f"{text} {getattr(getattr(caught.value, 'failure', None), 'traceback', '')}"
        assert f"in {hook}" in shown
        if act == "bad_value":
            assert type(caught.value.__cause__) is ValueError

    @pytest.mark.parametrize("hook", ["open_writers", "write_record", "close_writers"])
    def test_that_crashes(self, hook: str, folder: Path) -> None:
        """A hook that kills its worker again and again stops the run; outside of items no item is blamed."""
        runner = BadHook(Provider({"hook": hook, "act": "leave"}), progress=False, output_dir=folder / "out")
        with pytest.raises(ParallelError) as caught:
            runner(range(10))
        assert "Shard(" not in str(caught.value)
        assert type(caught.value) is PoisonItemError
        assert caught.value.index == (3 if hook == "write_record" else "shard 3")
        if hook != "write_record":
            assert str(caught.value).startswith("shard 3 failed on worker ")
            assert f" in {hook}, with no item in progress" in str(caught.value)

    def test_that_crashes_at_an_item(self, folder: Path) -> None:
        """With `on_error="record"` an item whose `write_record` ends its worker has failed, and the others go on."""
        given = Provider({"hook": "write_record", "act": "leave"})
        results = BadHook(given, progress=False, on_error="record", output_dir=folder / "out")(range(10))
        failed = [one for one in results if isinstance(one, ItemFailure)]
        assert [(one.index, one.cause) for one in failed] == [(3, "poison")] and len(results) == 10

    def test_that_crashes_after_an_error(self, folder: Path) -> None:
        """A worker that dies in close_writers after write_record has raised is no item's fault: none is named."""
        runner = FailsThenEnds(Provider({}), progress=False, on_error="record", output_dir=folder / "out")
        with pytest.raises(PoisonItemError, match="shard 3 .* in close_writers, with no item") as caught:
            runner(range(100))
        assert caught.value.index == "shard 3"
        assert not list((folder / "out").glob("session.*/errors.jsonl"))


# --- mistakes, found before the first item --------------------------------------------------------


@pytest.mark.parametrize("name", ["forward", "batch_forward", "write_record"])
def test_async_functions(name: str) -> None:
    """A runner's function that is a coroutine function is refused when the class is defined."""

    async def later(*_: Any, **__: Any) -> None:
        """Never awaited."""

    with pytest.raises(SignatureError, match=rf"Wrong\.{name} must be a plain function"):
        type("Wrong", (BaseRunner,), {name: staticmethod(later)})


def test_a_keyword_of_a_hook_that_the_env_lacks(folder: Path) -> None:
    """A hook's parameter that the env does not hold is named before the first item, too."""

    class Files(TouchFile):
        @staticmethod
        def write_record(writers: Any, result: Any, state: dict[str, Any], table: Any) -> None:
            pass

    with pytest.raises(SignatureError, match="'table'"):
        Files(Provider({"path": str(folder / "ran")}), progress=False, output_dir=folder / "out")(range(10))
    assert not (folder / "ran").exists(), "an item has run"
