"""Every test leaves no job behind."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from espnet3.parallel import ParallelError, set_parallel
from espnet3.parallel.detached.layout import FOLDER, PLAN
from espnet3.parallel.detached.looking import status
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from tests.parallel.detached.work import shut


@pytest.fixture(autouse=True)
def _looks_are_not_the_work() -> Iterator[None]:
    """Look less often at a run: each look at a stand-in starts its commands, which take what the jobs need."""
    # one of its own: a test's is undone before its jobs are ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "_POLL", (0.2, 10.0))
        yield


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    set_parallel(None)
    for plan in tmp_path.rglob(f"{FOLDER}/{PLAN}"):
        # the commands of a stand-in are gone with it; its own end kills its jobs
        with suppress(ParallelError):
            shut(DetachedRun.open(plan.parents[1]))
