"""What a user gives, checked and worded in one place."""

import importlib.machinery
import json
import math
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espnet3.parallel import BaseRunner, ConfigError, DetachedRun, EnvironmentProvider
from espnet3.parallel.checks import is_path, loaded
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.engine.seeding import seeded
from espnet3.parallel.pilots.channel import _is_encrypted
from espnet3.parallel.runner.progress import _in_notebook
from espnet3.parallel.runner.ranks import rank_of


class Nothing(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {}


class Double(BaseRunner):
    @staticmethod
    def forward(idx: int) -> int:
        return 2 * idx


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", np.int64(2)), ("seed", np.uint32(3)), ("max_failures", np.float32(0.5))],
)
def test_a_runner_takes_numpys_numbers(name: str, value: Any) -> None:
    """A runner given a number of numpy holds Python's own, which can be written as JSON."""
    runner = Double(Nothing({}), on_error="record", **{name: value})
    held = getattr(runner, name)
    assert held == value
    assert json.loads(json.dumps(held)) == held
    assert type(held) in (int, float)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_retries", -1, "an integer, 0 or more"),
        ("on_error", "recrod", '"raise" or "record"'),
        ("resume", "yes", 'True, False or "force"'),
        ("max_failures", -1, "a whole number of items"),
        ("max_failures", 1.5, "a whole number of items, or a share of them below 1"),
        ("item_timeout", math.inf, "a number above 0"),
        ("item_timeout", 1e300, "1,000,000,000 at most, or None"),
        ("async_mode", "false", "true or false"),
        ("output_dir", 3, "a path"),
        ("async_result_dir", [], "a path"),
    ],
)
def test_a_runner_refuses_what_it_cannot_use(name: str, value: Any, words: str) -> None:
    """Each argument of a runner that is wrong is named, with what it must be and the value."""
    with pytest.raises(ConfigError) as caught:
        Double(Nothing({}), **{name: value})
    assert str(caught.value).startswith(f"{name} must be {words}")
    assert str(caught.value).endswith(f", not {value!r}")


def test_a_module_counts_as_loaded_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that another thread is importing holds no attributes yet, and is not taken for loaded."""
    (tmp_path / "halfway.py").write_text("import sys\nsys.meeting.wait()\nsys.meeting.wait()\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    meeting = threading.Barrier(2, timeout=600)
    monkeypatch.setattr(sys, "meeting", meeting, raising=False)
    thread = threading.Thread(target=importlib.import_module, args=["halfway"])
    thread.start()
    meeting.wait()
    assert "halfway" in sys.modules and loaded("halfway") is None
    meeting.wait()
    thread.join()
    assert loaded("halfway").whole


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("pathlib", lambda: is_path(1)),
        ("omegaconf", lambda: ParallelConfig.parse({"env": "local"})),
        ("torch.distributed", lambda: rank_of({})),
        ("torch", lambda: seeded(1).__enter__()),
        ("IPython", _in_notebook),
        ("ssl", lambda: _is_encrypted(object())),
    ],
)
def test_a_module_that_is_being_imported_is_no_error(
    name: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at a module that may be loaded survives one that has no attributes yet."""
    half = types.ModuleType(name)
    half.__spec__ = importlib.machinery.ModuleSpec(name, None)
    half.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, name, half)
    call()


def test_a_block_takes_numpys_numbers() -> None:
    """Every number of numpy in a `parallel` block, also in its options, becomes Python's own."""
    block = ParallelConfig.parse(
        {
            "env": "slurm",
            "n_workers": np.int64(3),
            "start_timeout": np.float32(5),
            "options": {"queue": "q", "cores": np.int64(2), "memory": "1GB"},
            "detached": {"shards": np.int64(4), "retry_memory_factor": np.float64(1.5)},
        }
    )
    numbers = [block.n_workers, block.start_timeout, block.options["cores"], *block.detached.values()]
    assert numbers == [3, 5.0, 2, 4, 1.5]
    assert {type(number) for number in numbers} == {int, float}


def test_a_grace_that_would_never_be_over_is_refused(tmp_path: Path) -> None:
    """A detached run is not cancelled with a grace that is no number of seconds, and nothing is ordered."""
    layout = Layout(tmp_path)
    layout.write_plan(Plan("hash", [0, 1], str(tmp_path / "specs"), "local", 1, {}, {}), [0])
    with pytest.raises(ConfigError, match="^grace must be a number, 0 or more, not"):
        DetachedRun.open(tmp_path).cancel(math.nan)
    assert layout.stopped() is None
