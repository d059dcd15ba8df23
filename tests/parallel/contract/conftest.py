"""Every test starts from the default configuration; `place` runs a test in process and on two workers of each kind.

On an open client, and detached, the tests below run by default; the others have the mark `matrix` there.
"""

import pytest

from espnet3.parallel import get_client, set_parallel
from espnet3.parallel.local.workers import end_idle
from tests.parallel.contract.helpers import TWO

CLIENTS = {"client": TWO, "threads": {**TWO, "options": {"processes": False}}}
ON_A_CLIENT_BY_DEFAULT = {
    "test_any_callable_can_be_mapped",
    "test_an_endless_iterable_is_taken_as_it_is_needed",
    "test_a_keyword_that_the_env_also_holds_is_refused_before_any_item",
    "test_one_method_makes_a_provider",
    "test_a_failed_item_stops_the_run_with_its_index_and_its_exception",
}
DETACHED_BY_DEFAULT = {
    "test_every_writer_is_closed_by_default[detached-NestedWriters-ab]",
    "test_overridden_state_hooks_are_called_in_place_of_the_writer_hooks[detached-States-ab]",
    "test_every_worker_has_an_id_in_its_environment[detached]",
}
_config = [None]  # what tests start from


def pytest_collection_modifyitems(items):
    for item in items:
        # all items come here
        if "parallel/contract" not in item.path.as_posix() or not hasattr(item, "callspec"):
            continue
        where = {name: item.callspec.params.get(name) for name in ("place", "mode")}
        if (where["place"] in CLIENTS and item.originalname not in ON_A_CLIENT_BY_DEFAULT) or (
            where["mode"] == "detached" and item.name not in DETACHED_BY_DEFAULT
        ):
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(autouse=True)
def default_config(request):
    """Give each test the configuration that tests start from: that of the place, where one has it."""
    set_parallel(_config[0] if "place" in request.fixturenames else None)


@pytest.fixture(
    scope="module",
    params=["here", "own", "client", "threads"],
    ids=["in-process", "own-workers", "two-workers", "beside-threads"],
)
def place(request):
    """Where calls without `client=` run: in this process, on two processes of ours, or on a client with two workers."""
    if request.param in CLIENTS:
        with get_client(CLIENTS[request.param]):
            yield 2
        return
    _config[0] = TWO if request.param == "own" else None
    yield 1 if request.param == "here" else 2
    _config[0] = None
    end_idle()
