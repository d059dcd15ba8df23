"""Items that hang, in runs that go to a folder."""

import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, ItemError, set_parallel
from tests.habits import rows
from tests.parallel.durable.work import BAD, Items, Provider, Shards

N = 60
LIMIT = 2.0  # seconds: far more than any item needs that does not hang


def make(folder: Path, cls: type[BaseRunner], **options: Any) -> BaseRunner:
    given: dict[str, Any] = {"output_dir": folder / "run", "item_timeout": LIMIT, "progress": False}
    return cls(Provider({"log": str(folder / "log")}), **given, **options)


@pytest.mark.parametrize("cls", rows([Items, Shards], (Shards,)))
def test_by_default_they_stop_the_run(cls: type[BaseRunner], tmp_path: Path) -> None:
    """With `on_error="raise"` a hang is an error that names the item."""
    set_parallel({"env": "local", "n_workers": 2})
    with pytest.raises(ItemError, match=f"item {BAD} failed") as caught:
        make(tmp_path, cls)(range(N))
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert caught.value.failure.cause == "timeout"


def test_one_worker_with_a_time_limit_is_a_process_of_its_own(tmp_path: Path) -> None:
    """In the calling process nothing could be killed: the items run in one that can."""
    results = make(tmp_path, Items, on_error="record")(range(N))
    assert results[BAD].cause == "timeout"
    assert not (tmp_path / f"log.{os.getpid()}").exists()
