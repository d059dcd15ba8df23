"""The Asterisk recipe's modules, and its corpus, built once per session from the real packages."""

import fcntl
import shutil
import sys
from pathlib import Path

import pytest

from tests.components.needed import left_out

if left_out("torch"):
    collect_ignore = ["test_asterisk_ctc.py"]

RECIPE = Path(__file__).resolve().parents[2] / "egs3" / "asterisk" / "asr"
# The recipe's modules are src.* and dataset.*, as run.py arranges it.
sys.path.insert(0, str(RECIPE))


@pytest.fixture(scope="session")
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the two Debian packages; pytest's cache spares later sessions the download."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("the corpus comes from Debian packages: needs apt-get and dpkg")
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("asterisk-packages") if cache else tmp_path_factory.mktemp("asterisk-packages")
    from dataset.builder import AsteriskBuilder

    AsteriskBuilder(folder)._packages()
    return folder / "downloads"


@pytest.fixture(scope="session")
def corpus(packages: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of the whole corpus, which one of several test processes builds for all."""
    from dataset.builder import AsteriskBuilder

    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # a process of pytest-xdist: the folder above is that of all
        folder = folder.parent
    with (folder / "corpus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        AsteriskBuilder(folder / "corpus", packages).build()
    return folder / "corpus"
