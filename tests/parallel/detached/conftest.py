"""Every test leaves no job behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from espnet3.parallel import ParallelError, set_parallel
from espnet3.parallel.detached.layout import FOLDER, PLAN
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from tests.parallel.detached.work import shut


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    set_parallel(None)
    for plan in tmp_path.rglob(f"{FOLDER}/{PLAN}"):
        with suppress(
            ParallelError
        ):  # the commands of a stand-in are gone with it; its own end kills its jobs
            shut(DetachedRun.open(plan.parents[1]))
