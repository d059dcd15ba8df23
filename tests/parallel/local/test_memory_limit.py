"""What workers may use of this machine: the watch over their memory by itself, and their share of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from espnet3.parallel import get_client, parallel_map, set_parallel
from espnet3.parallel.backends import BACKENDS, machine
from espnet3.parallel.backends.machine import all_memory, processors
from espnet3.parallel.local import supervisor
from espnet3.parallel.local.supervisor import MemoryWatch, limit_in_bytes
from espnet3.parallel.records import MEMORY_LIMIT
from espnet3.parallel.views.sizing import most_workers
from tests.descriptors import no_descriptor_left
from tests.parallel.local.items import thread_of


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that waits, in a group of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as started:
        yield started
        started.kill()


@pytest.fixture(autouse=True)
def always_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look whenever asked to."""
    monkeypatch.setattr(supervisor, "_next_look", lambda: 0.0)


def test_a_moment_without_descriptors_ends_no_watch(program: subprocess.Popen[bytes]) -> None:
    """Where no descriptor is free for a look at a process, nothing is raised; the next look finds what it uses."""
    watch = MemoryWatch(1024, 1)
    with no_descriptor_left():
        watch.look("0", program.pid)
    assert program.poll() is None
    watch.look("0", program.pid)
    end = watch.end_of(program.pid, 9)
    assert program.wait(600) == -9
    assert end.reason == MEMORY_LIMIT


@pytest.fixture
def one_processor() -> Iterator[None]:
    """Leave this process, and what it starts, one processor of the machine's."""
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        pytest.skip("there is one processor only")
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_processor")
def test_workers_share_the_processors_that_may_be_used() -> None:
    """Where one of a machine's processors may be used, a worker has all memory by default, and one thread for it."""
    options = {"threads_per_worker": None, "processes": True}
    set_parallel({"env": "local", "n_workers": 1, "options": options, "idle_timeout": 0})
    assert len(set(parallel_map(thread_of, range(200)))) == 1
    with get_client({"env": "local", "n_workers": 1, "options": options}) as client:
        (worker,) = client.scheduler_info()["workers"].values()
    assert worker["nthreads"] == 1
    assert worker["memory_limit"] == limit_in_bytes("auto", 1) == all_memory()
    assert most_workers(BACKENDS["local"]) == 1


# what /proc/self/cgroup says, the files of control groups, and the processors and bytes that may be used then
GROUPS = {
    "without-a-limit": ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, 64, None),
    "one-around": (
        "0::/user/job/step",
        {"user/job/cpu.max": "200000 100000", "user/memory.max": "2000000", "user/job/memory.max": "max"},
        2,
        2_000_000,
    ),
    "version-1": (
        "4:memory:/job\n2:cpu,cpuacct:/job",
        {
            "cpu/job/cpu.cfs_quota_us": "300000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": "3000000",
        },
        3,
        3_000_000,
    ),
    "a-container-that-sees-its-own-group": (
        "4:memory:/docker/ab\n2:cpu:/docker/ab\n0::/docker/ab",
        {
            "cpu/cpu.cfs_quota_us": "50000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "4000000",
        },
        1,
        4_000_000,
    ),
    "none": (None, {}, 64, None),
}


@pytest.mark.parametrize("case", GROUPS)
def test_the_limits_of_control_groups_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The tightest limit of the groups around a process says how many processors and how much memory it may use."""
    own, files, count, memory = GROUPS[case]
    if own is not None:
        (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert processors() == count
    assert memory is None or all_memory() == memory
    assert limit_in_bytes("auto", 1) == int(all_memory() / count)
