"""How many workers a run says that it starts or waits for: the number asked for, wherever they come from."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Client

from espnet3.parallel import get_client
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.work import Work
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import Tally
from espnet3.parallel.runner import execute
from espnet3.parallel.runner.execute import outcomes
from tests.habits import rows

OWN = {"env": "local", "n_workers": 2}
OF_DASK = {**OWN, "options": {"dashboard_address": "127.0.0.1:0"}}


def run(client: Client | None, block: dict[str, Any], tally: Tally) -> int:
    """Run a few items, and return how many workers they were said to be on."""
    config = ParallelConfig.parse(block)
    pairs = outcomes(RunSpec(abs), Work(range(4)), client, config, tally)
    assert sum(len(done.values) for _, done in pairs) == 4
    return tally.asked


@pytest.mark.parametrize(
    ("block", "start"),
    rows([(OWN, "_on_own_workers"), (OF_DASK, "owned_client")], [(OWN, "_on_own_workers")]),
    ids=["own", "dask"],
)
def test_workers_are_counted_before_they_are_there(
    block: dict[str, Any], start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the workers of a run start, which takes hours in a queue, the run knows how many they are to be."""
    tally, seen = Tally(), []
    really = getattr(execute, start)

    def starts(*arguments: Any) -> Any:
        seen.append(tally.asked)
        return really(*arguments)

    monkeypatch.setattr(execute, start, starts)
    assert run(None, block, tally) == 2
    assert seen == [2]


def test_a_client_has_its_own_number_of_workers() -> None:
    """A run on an open client waits for as many as that was opened with; on a client of Dask's own, for none."""
    three = {**OWN, "n_workers": 3}
    with get_client({**OWN, "options": {"processes": False}}) as client:
        assert run(client, three, Tally()) == 2
    with Client(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as client:
        assert run(client, three, Tally()) == 0
