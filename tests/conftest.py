"""What every test begins with: no configuration of an earlier one, a Ctrl-C that is heard, and an equal environment."""

import os
import signal
from collections.abc import Iterator
from zlib import crc32

import pytest

from espnet3.parallel import set_parallel


def pytest_configure() -> None:
    """Hear Ctrl-C, which a shell that starts this in the background has ignored; give Dask's restarts time.

    A LocalCluster closes for good what it has not restarted within 15 s: on a busy machine a worker takes longer.
    """
    os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "600s"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


CONTRACT = ("contract", "durable", "faults", "spec")  # folders whose tests look through the public API
LONGEST = (  # files that begin first: none of them is left alone when all others have ended
    "tests/egs3/test_asterisk_decode.py",
    "tests/egs3/test_asterisk_killed.py",
    "tests/parallel/detached/test_elsewhere.py",
    "tests/parallel/faults/test_timeouts.py",
    "tests/parallel/faults/test_frozen_workers.py",
    "tests/parallel/detached/test_submit.py",
    "tests/security/test_clusters.py",
    "tests/systems/test_launch.py",
    "tests/docs/test_docs.py",
    "tests/docs/test_examples.py",
    "tests/espnet3_parallel/test_distributions.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that have to survive a redesign, and begin with the longest files; `PART=1/3`: a part of all."""
    part, parts = map(int, os.environ.get("PART", "0/1").split("/"))
    items[:] = [item for item in items if crc32(item.nodeid.encode()) % parts == part]
    for item in items:
        if item.path.parent.name in CONTRACT:
            item.add_marker(pytest.mark.contract)
    place = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[object]:
    """Give every test the same environment, without its name: worker processes that stay are those of an equal one."""
    os.environ["PYTEST_CURRENT_TEST"] = "a test"
    return (yield)


@pytest.fixture(autouse=True)
def _no_configuration_stays() -> Iterator[None]:
    """Take back what a test has set: the next one in this process would run there."""
    yield
    set_parallel(None)
