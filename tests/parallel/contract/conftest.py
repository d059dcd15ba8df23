"""Every test starts from the default configuration; `place` runs a test in process and on two workers of each kind.

On an open client only what calls and runners are promised runs by default, with the first row of each test; all else
of that leg has the mark `matrix`.
"""

import pytest

from espnet3.parallel import get_client, set_parallel
from espnet3.parallel.local.workers import end_idle
from tests.parallel.contract.helpers import TWO

ON_A_CLIENT_BY_DEFAULT = ("test_calls_anywhere.py", "test_runner_anywhere.py")
_config = [None]  # what tests start from


def pytest_collection_modifyitems(items):
    seen = set()
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("place") == "client":
            if item.path.name not in ON_A_CLIENT_BY_DEFAULT or item.function in seen:
                item.add_marker(pytest.mark.matrix)
            seen.add(item.function)


@pytest.fixture(autouse=True)
def default_config():
    """Take the configuration back that tests start from, before and after each."""
    set_parallel(_config[0])
    yield
    set_parallel(None)


@pytest.fixture(
    scope="module", params=["here", "own", "client"], ids=["in-process", "own-workers", "two-workers"]
)
def place(request):
    """Where calls without `client=` run: in this process, on two processes of ours, or on an open client with two."""
    if request.param == "client":
        with get_client(TWO):
            yield 2
        return
    _config[0] = TWO if request.param == "own" else None
    yield 1 if request.param == "here" else 2
    _config[0] = None
    end_idle()
