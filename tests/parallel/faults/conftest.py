"""Each test here gets a temporary folder with a short path, and a clean end."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import get_client
from espnet3.parallel.runner import execute
from tests.parallel.faults.watching import TOKEN, Mailbox, kill_family

# "dask": local workers are those of a LocalCluster also where no client is open; else processes of our own
WAY = os.environ.get("FAULTS_WAY", "own")


@pytest.fixture(scope="session", autouse=True)
def way() -> Iterator[None]:
    """Have the same tests go over Dask's own cluster, where that is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        if WAY == "dask":
            patch.setattr(execute, "without_dask", lambda config: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folder() -> Iterator[Path]:
    """Give this package's temporary folders a place that no other program uses (a unix socket's path is short)."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Mark what a test starts, and kill what a failed test left."""
    shared = not {"two_workers", "users_cluster"}.isdisjoint(request.fixturenames)
    if not shared:
        os.environ[TOKEN] = uuid.uuid4().hex
    yield
    if not shared:
        kill_family()
        del os.environ[TOKEN]


@pytest.fixture
def folder(temporary_folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="t", dir=temporary_folder))


@pytest.fixture
def mailbox(folder: Path) -> Iterator[Mailbox]:
    box = Mailbox(folder / "mail")
    yield box
    box.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Open two workers for the tests of a module, which are replaced as they are lost."""
    with get_client({"env": "local", "n_workers": 2}) as client:
        yield client


@pytest.fixture(scope="class")
def two_workers(temporary_folder: Path) -> Iterator[Any]:
    """Open two workers for all tests of a class: they are killed and replaced many times."""
    with get_client({"env": "local", "n_workers": 2}) as client:
        yield client
