"""Writer hooks that fail: an error that says which hook and why, in any policy, and no hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from espnet3.parallel import LedgerError, ParallelError, PoisonItemError
from tests.habits import rows
from tests.parallel.faults.workloads import CRASHES, BadHook, FailsThenEnds, InTheWay, Provider

HOOKS = ["open_writers", "write_record", "close_writers"]


@pytest.mark.usefixtures("two_workers")
class TestHooks:
    """A run of ten shards, one item each, the fourth of which fails."""

    @pytest.mark.parametrize("on_error", rows(["raise", "record"], ("record",)))
    @pytest.mark.parametrize("act", ["bad_value", "unpicklable_error", "system_exit"])
    @pytest.mark.parametrize("hook", HOOKS)
    def test_that_raises(self, hook: str, act: str, on_error: str, folder: Path) -> None:
        """A hook that raises stops the run; the error shows the hook, its exception and where it was."""
        runner = BadHook(
            Provider({"hook": hook, "act": act}), progress=False, on_error=on_error, output_dir=folder / "out"
        )
        with pytest.raises(ParallelError) as caught:
            runner(range(10))
        text = str(caught.value)
        words = {
            "bad_value": "bad item",
            "unpicklable_error": "it holds a lock",
            "system_exit": "wants to leave",
        }
        assert words[act] in text
        assert "Shard(" not in text
        shown = f"{text} {getattr(getattr(caught.value, 'failure', None), 'traceback', '')}"
        assert f"in {hook}" in shown
        if act == "bad_value":
            assert type(caught.value.__cause__) is ValueError

    @pytest.mark.parametrize("act", rows([*CRASHES], ("leave",)))
    @pytest.mark.parametrize("hook", HOOKS)
    def test_that_crashes(self, hook: str, act: str, folder: Path) -> None:
        """A hook that kills its worker again and again stops the run; outside of items no item is blamed."""
        runner = BadHook(Provider({"hook": hook, "act": act}), progress=False, output_dir=folder / "out")
        with pytest.raises(ParallelError) as caught:
            runner(range(10))
        assert "Shard(" not in str(caught.value)
        assert type(caught.value) is PoisonItemError
        assert caught.value.index == (3 if hook == "write_record" else "shard 3")
        if hook != "write_record":
            assert str(caught.value).startswith("shard 3 failed on worker ")
            assert f" in {hook}, with no item in progress" in str(caught.value)

    @pytest.mark.parametrize("on_error", rows(["raise", "record"], ("record",)))
    def test_that_crashes_after_an_error(self, on_error: str, folder: Path) -> None:
        """A worker that dies in close_writers after write_record has raised is no item's fault: none is named."""
        runner = FailsThenEnds(Provider({}), progress=False, on_error=on_error, output_dir=folder / "out")
        with pytest.raises(
            PoisonItemError, match="shard 3 failed .* in close_writers, with no item"
        ) as caught:
            runner(range(100))
        assert caught.value.index == "shard 3"
        assert not list((folder / "out").glob("session.*/errors.jsonl"))

    def test_of_a_folder_that_cannot_be_made(self, folder: Path) -> None:
        """Where a shard's folder cannot be written, the error names it and what to do, and no internal object."""
        provider = InTheWay({"hook": "", "act": "", "path": str(folder / "out" / "split.3")})
        runner = BadHook(provider, progress=False, output_dir=folder / "out")
        with pytest.raises(
            LedgerError, match=r"cannot write split\.3: .*a file stands where a folder"
        ) as caught:
            runner(range(10))
        assert "Shard(" not in str(caught.value)
