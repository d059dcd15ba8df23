"""How long the driver may sleep."""

from __future__ import annotations

import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from espnet3.parallel import parallel_map, set_parallel
from espnet3.parallel.pilots import driver
from tests.habits import rows
from tests.parallel.pilots.items import shot_once


@pytest.mark.parametrize("at", rows([-1, 5], (5,)), ids=["undisturbed", "a worker dies"])
def test_the_driver_never_sleeps_for_longer_than_a_tick(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens in a run, its driver looks around five times a second."""
    waits: list[float | None] = []

    class Recording(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().select(timeout)

    names = {**vars(selectors), "DefaultSelector": Recording}  # in the driver alone: the supervisor may sleep
    monkeypatch.setattr(driver, "selectors", SimpleNamespace(**names))
    set_parallel({"env": "local", "n_workers": 2})
    assert parallel_map(shot_once, range(20), at=at, where=str(tmp_path / "shot")) == list(range(20))
    assert waits
    assert all(wait is not None and 0 <= wait <= 0.2 for wait in waits), waits
