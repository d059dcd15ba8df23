"""Every test leaves no job behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from espnet3.parallel import set_parallel
from espnet3.parallel.detached.layout import FOLDER, PLAN
from espnet3.parallel.detached.looking.run import DetachedRun
from tests.parallel.detached.work import shut


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    set_parallel(None)
    for plan in tmp_path.rglob(f"{FOLDER}/{PLAN}"):
        shut(DetachedRun.open(plan.parents[1]))
