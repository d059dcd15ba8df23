"""Every test starts from the default configuration; `place` runs a test in process and on two workers."""

import pytest

from espnet3.parallel import get_client, set_parallel
from tests.parallel.contract.helpers import TWO


@pytest.fixture(autouse=True)
def default_config():
    """Take the default configuration back before and after each test."""
    set_parallel(None)
    yield
    set_parallel(None)


@pytest.fixture(scope="module", params=[1, 2], ids=["in-process", "two-workers"])
def place(request):
    """Where calls without `client=` run: in this process, or on an open client with two workers."""
    if request.param == 1:
        yield 1
        return
    with get_client(TWO):
        yield 2
