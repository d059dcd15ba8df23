"""Worker processes of our own: without Dask, kept for the next call, and gone when they must be."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from espnet3.parallel import NoWorkersError, parallel_map, set_parallel
from espnet3.parallel.local import supervisor, workers
from espnet3.parallel.local.workers import end_idle
from espnet3.parallel.pilots import driver
from tests.habits import rows
from tests.parallel.contract.helpers import children, finish, start_script
from tests.parallel.detached.work import program
from tests.parallel.local import items
from tests.parallel.local.items import Add, Provider
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
TWO = {"env": "local", "n_workers": 2, "idle_timeout": 600}


@pytest.fixture(autouse=True)
def two_workers() -> Iterator[None]:
    """Register two workers, and begin and end without any that stay."""
    end_idle()
    set_parallel(TWO)
    yield
    end_idle()


def pids(n: int = 200) -> set[int]:
    return set(parallel_map(items.pid, range(n)))


NO_DASK = """
import sys
from espnet3.parallel import (
    BaseRunner, EnvironmentProvider, parallel_for, parallel_map, parallel_submit, set_parallel
)

HEAVY = ("distributed", "dask", "tornado")

def loaded(x):
    return [name for name in HEAVY if name in sys.modules]

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"k": 2}
    def build_worker_setup_fn(self):
        return lambda: {"k": 2}

class Double(BaseRunner):
    @staticmethod
    def forward(idx, k):
        return idx * k + 100 * len(loaded(idx))

set_parallel({"env": "local", "n_workers": 2, "options": {"threads_per_worker": 1}})
assert parallel_map(loaded, range(50)) == [[]] * 50
assert sorted(map(len, parallel_for(loaded, range(50)))) == [0] * 50
assert parallel_submit(loaded, 0).result() == []
assert Double(Provider({}), progress=False)(range(50)) == [2 * x for x in range(50)]
results = Double(Provider({}), progress=False, output_dir="out")(range(50))
assert list(results) == [2 * x for x in range(50)]
assert loaded(0) == [], loaded(0)
print("done")
"""


WITHOUT = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def without(name, path=None, target=None):
    if name.split(".")[0] not in ("dask", "distributed", "tornado"):
        return find_spec(name, path, target)

PathFinder.find_spec = without
"""


@pytest.mark.parametrize("installed", [True, False])
def test_local_runs_load_no_dask_and_need_none(installed: bool, tmp_path: Path) -> None:
    """Functions, a runner and a run folder on two workers load no Dask where it is, and work where it is missing."""
    if not installed:
        (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    result = finish(start_script(tmp_path, NO_DASK, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"))
    assert result.returncode == 0 and result.stdout == "done\n", result.stderr


def test_what_needs_dask_says_so_where_it_is_missing(tmp_path: Path) -> None:
    """`get_client` without Dask's packages names what is missing and the line that installs it."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    code = (
        "from espnet3.parallel import MissingPackageError, get_client\n"
        "try:\n    get_client({'env': 'local', 'n_workers': 2}).__enter__()\n"
        "except MissingPackageError as error:\n    print(error)\n"
    )
    result = finish(start_script(tmp_path, code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"))
    assert "distributed" in result.stdout and "pip install" in result.stdout, result.stderr


def failing_item(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        parallel_map(items.inverse, [1, 0])


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "a variable": lambda patch, folder: patch.setenv("OWN_WORKERS", "changed"),
    "the folder": lambda patch, folder: patch.chdir(folder),
    "the path": lambda patch, folder: patch.syspath_prepend(str(folder)),
    "the block": lambda patch, folder: set_parallel({**TWO, "options": {"memory_limit": "8GB"}}),
    "an item sets a variable": lambda patch, folder: parallel_map(items.set_variable, range(100)),
    "an item fails": failing_item,
}


@pytest.mark.parametrize("change", rows(list(CHANGES), list(CHANGES)[::2]))
def test_a_change_starts_fresh_processes(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a change of what processes are made from, or of what they have become, none is used again."""
    before = pids()
    CHANGES[change](monkeypatch, tmp_path)
    after = pids()
    assert not before & after
    assert set(parallel_map(items.surroundings, range(100))) == {(os.getcwd(), os.environ.get("OWN_WORKERS"))}


def test_a_process_that_an_item_has_changed_has_no_more_items(tmp_path: Path) -> None:
    """Where an item has changed one of two processes, both items of the next call run in two others than that one."""
    found = []
    for number in (0, 10):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(parallel_map(items.pid_of_two, [number, number + 1], folder=str(folder)))
    (changed, _), after = found
    assert changed not in after and len(set(after)) == 2


def test_an_edited_module_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only items import is what its file says at the time of the call."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "edited_between_calls.py"
    for value in (1, 22, 333):  # of different lengths: Python's own cache looks at whole seconds and the size
        module.write_text(f"VALUE = {value}\n")
        assert set(parallel_map(items.value_of, ["edited_between_calls"] * 50)) == {value}


@pytest.mark.parametrize("idle_timeout", rows([0, 600], (600,)))
def test_what_a_module_keeps_lasts_as_long_as_the_processes(idle_timeout: float, tmp_path: Path) -> None:
    """A global that items set is there in the next call while the processes stay, and never with `idle_timeout: 0`."""
    set_parallel({**TWO, "idle_timeout": idle_timeout})
    parallel_map(items.remember, range(200), folder=str(tmp_path))
    assert any(parallel_map(items.remembers, range(200))) is (idle_timeout > 0)


@pytest.mark.parametrize("seconds", [0.2, 0])
def test_idle_processes_end_by_themselves(seconds: float) -> None:
    """After `idle_timeout` seconds no process of a call is left; with 0, none when the call returns."""
    set_parallel({**TWO, "idle_timeout": seconds})
    found = pids()
    if seconds:
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in found))
    assert not any(psutil.pid_exists(pid) for pid in found)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_they_end_before_a_fork() -> None:
    """A program that forks has no worker processes that stay, and its child can have its own."""
    found = pids()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if parallel_map(abs, range(-20, 0)) == list(range(20, 0, -1)) else 2
        finally:
            end_idle()
            os._exit(code)
    assert not any(psutil.pid_exists(pid) for pid in found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


ENDS = """
import os, sys, time
from espnet3.parallel import parallel_map, set_parallel

def pid(x):
    return os.getpid()

set_parallel({"env": "local", "n_workers": 2, "idle_timeout": 600})
print(*sorted(set(parallel_map(pid, range(200)))), flush=True)
if sys.argv[1:] == ["wait"]:
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", rows([True, False], (True,)), ids=["killed", "at its end"])
def test_they_end_with_the_program(killed: bool, tmp_path: Path) -> None:
    """Processes that would stay for minutes are gone as soon as their driver has ended, or was killed."""
    (tmp_path / "script.py").write_text(ENDS)
    with program("script.py", *(["wait"] if killed else []), cwd=tmp_path) as driver:
        assert driver.stdout is not None
        found = [int(word) for word in driver.stdout.readline().split()]
        assert found
        if killed:
            os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in found))


def test_no_more_processes_than_are_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One item starts one process, which does a few quick items alone; others come where that takes long."""
    before = children()  # other tests', which may be ending
    set_parallel({**TWO, "n_workers": 4})
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_FIRST", 600.0)  # on any machine
        assert (len(pids(1) | pids(64)), len(children() - before)) == (1, 2)  # it, and the server that forks
    found = {*parallel_map(items.pid_of_two, range(2), folder=str(tmp_path))}
    assert (len(found), len(children() - before)) == (2, 3)


def test_a_process_that_cannot_start_is_an_error_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries the call ends, and its error has what went wrong in the process."""
    right = workers.boot_of
    monkeypatch.setattr(workers, "boot_of", lambda *args, **more: right(*args, **{**more, "threads": "two"}))
    with pytest.raises(NoWorkersError, match=r"(?s)worker \d did not start.*in _serve_slots.*TypeError"):
        parallel_map(abs, range(10))


def test_options_are_kept(tmp_path: Path) -> None:
    """`threads_per_worker` and `env` reach the processes."""
    set_parallel({**TWO, "options": {"threads_per_worker": 2, "env": {"OWN_WORKERS": "yes"}}})
    assert {env for _, env in parallel_map(items.surroundings, range(50))} == {"yes"}
    used = set(parallel_map(items.thread, range(400), folder=str(tmp_path)))
    assert len({pid for pid, _ in used}) < len(used) <= 4


def test_a_preloaded_module_is_loaded_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find what `preload` names already loaded, by one process that is none of them; an edit counts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "loaded_before_the_fork.py"
    set_parallel({**TWO, "options": {"preload": module.stem}})
    for size in (1, 22):
        module.write_text(f"import os\nVALUE = os.getpid(), {size}\n")
        (found,) = set(parallel_map(items.value_of, [module.stem] * 50))
        assert found[0] not in pids() and found[1] == size


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "has started threads",
        ),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_module_that_no_fork_can_share_is_refused(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preloaded module that starts a thread or fails is an error that names it and the reason."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "not_to_be_shared.py").write_text(code)
    set_parallel({**TWO, "options": {"preload": ["not_to_be_shared"]}})
    with pytest.raises(NoWorkersError, match=rf"preload: .*not_to_be_shared {why}"):
        parallel_map(abs, range(10))


@pytest.mark.parametrize(
    "value", ["auto", "4GB", "4 GiB", "512MB", "1e9", 0.5, 0, None, 3 << 30, "1TB", "2000000000"]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_limit_is_read_as_dask_reads_it(value: Any, threads: int) -> None:
    """Each form of `memory_limit` is as many bytes here as in a `LocalCluster`."""
    from distributed.worker_memory import parse_memory_limit

    asked = parse_memory_limit(value, threads, logger=logging.getLogger("memory_limit"))
    assert supervisor.limit_in_bytes(value, threads) == asked


def test_many_runs_grow_nothing() -> None:
    """Runs in one process leave it with as many threads, descriptors and processes as after the first few."""
    me = psutil.Process()

    def now() -> tuple[int, int, int]:
        return me.num_threads(), me.num_fds(), len(me.children(recursive=True))

    def grows_nothing() -> bool:
        before = now()
        for number in range(6):
            assert run(range(20)) == list(range(1, 21))
            if number % 3 == 2:
                end_idle()  # two starts among them
        run(range(20))
        with contextlib.suppress(AssertionError):  # threads that were told to end take a moment
            wait_until(lambda: all(after <= was for after, was in zip(now(), before, strict=True)), 2)
            return True
        return False

    run = Add(Provider({}), progress=False)
    for _ in range(5):
        run(range(20))
    # a run that begins before the last one's slots are back opens one more in each of the two processes, which stays
    assert any(grows_nothing() for _ in range(5))
