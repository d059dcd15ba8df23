"""What follows from the record of a scheduler: `test_new_scheduler.py` runs this in a tree that has it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from espnet3.parallel import ConfigError, DetachedRun, NoWorkersError, get_client, parallel_map, set_parallel
from espnet3.parallel.backends import row
from espnet3.parallel.backends.check import option_problems
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.testing import BackendContract
from tests.parallel.detached.work import Provider, Squares, calls, held, here, hold, let_go, shut
from tests.standins.place import commands_on_path

COMMANDS = Path(__file__).parent / "example_scheduler" / "commands.py"
UNFINISHED = 75  # exit code of `espnet3-parallel status` while jobs are queued
OPTIONS = {"cores": 1, "memory": "1GB", "walltime": "10m", "interface": "lo"}


@pytest.fixture
def queue() -> Iterator[Any]:
    with placed(slots=1) as standin:
        yield standin


def placed(slots: int = 8) -> Any:
    """Return the block of code in which the scheduler has commands."""
    words = {name: [sys.executable, str(COMMANDS), name] for name in ("exsub", "exstat", "exdel")}
    return commands_on_path("example", words, slots)


def espnet3(*words: object, cwd: Path, code: int = 0) -> str:
    """Run the command `espnet3-parallel` in another process, which ends with `code`; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "espnet3_parallel", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def conf(folder: Path, n_workers: int = 2) -> str:
    options = ", ".join(f"{name}: {value}" for name, value in OPTIONS.items())
    (folder / "conf.yaml").write_text(
        f"parallel: {{env: example, n_workers: {n_workers}, options: {{{options}}}}}\n"
    )
    return "conf.yaml"


def test_its_options_are_checked() -> None:
    """Names, values, required options and times are checked by the record and the live signature of the job class."""
    example = row("example")
    assert option_problems(example, OPTIONS) == []
    assert [text.split()[0] for text in option_problems(example, {})] == ["options.cores", "options.memory"]
    (slip,) = option_problems(example, {**OPTIONS, "lan": "fast"})
    assert slip == "options.lan = 'fast': unknown option of example. Did you mean 'lane'?"
    (time,) = option_problems(example, {**OPTIONS, "walltime": 240})
    assert 'walltime: "04:00"' in time
    assert option_problems(row("local"), {"lane": 1}) == [
        "options.lane = 1: belongs to example, not to local"
    ]
    with pytest.raises(ConfigError, match="Did you mean 'example'"):
        ParallelConfig.parse({"env": "exampel"})
    adapted = {"env": "example", "options": OPTIONS, "adapt": {"minimum": 0, "maximum": 2}}
    assert ParallelConfig.parse(adapted).adapt == {"minimum": 0, "maximum": 2}


def test_plan_prints_its_script(tmp_path: Path) -> None:
    """`espnet3-parallel plan` prints the job script and the command that would submit it, in a process of its own."""
    printed = espnet3("plan", conf(tmp_path), cwd=tmp_path)
    assert printed.startswith("# 2 jobs of 1 worker each, by: exsub SCRIPT\n")
    assert "#EX --time=00:10\n" in printed  # "10m", as the record says that times are written
    assert "distributed.cli.dask_worker tcp://SCHEDULER:PORT" in printed


def test_doctor_starts_a_worker_on_it(queue: Any, tmp_path: Path) -> None:
    """`espnet3-parallel doctor --start` finds its commands, asks its queue, and runs an item in a job."""
    printed = espnet3("doctor", conf(tmp_path), "--start", cwd=tmp_path)
    for line in ("exsub is ", "exstat answers", "one item ran on "):
        assert f"ok  {line}" in printed
    assert ", 0 wrong" in printed
    assert [job.ended_by for job in queue.jobs()] == ["cancel"]


def test_a_job_that_dies_at_its_start_is_explained(queue: Any, tmp_path: Path) -> None:
    """The words of its queue and the log of the job reach the error of a driver."""
    options = {**OPTIONS, "python": "false", "log_directory": str(tmp_path)}
    block = {"env": "example", "n_workers": 1, "options": options, "start_timeout": 600}
    wanted = r"job \d+ has failed \(BROKEN\)[\s\S]*see: exstat --job=\d+"
    with pytest.raises(NoWorkersError, match=wanted), get_client(block):
        parallel_map(str, [1])


class TestContract(BackendContract):
    """The contract of every backend, on jobs of the new one."""

    config: ClassVar = {"env": "example", "n_workers": 2, "options": OPTIONS}
    place: ClassVar[ExitStack]

    @classmethod
    def setup_class(cls) -> None:
        cls.place = ExitStack()
        cls.place.enter_context(placed())
        super().setup_class()

    @classmethod
    def teardown_class(cls) -> None:
        with cls.place:
            super().teardown_class()


def submit(folder: Path) -> DetachedRun:
    set_parallel(
        {
            "env": "example",
            "n_workers": 2,
            "options": {"cores": 1, "memory": "1GB", "walltime": "10m"},
            "detached": {"shards": 3},
        }
    )
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(Provider({"folder": str(folder)}), **folders, async_mode=True, progress=False)
    return runner(range(6))  # type: ignore[no-any-return]


def test_a_detached_run_from_status_to_merge(queue: Any, tmp_path: Path) -> None:
    """A job array is submitted, listed, cancelled, retried, waited for and merged, from here and by the command."""
    hold(tmp_path, 0)
    run = submit(tmp_path)
    try:
        held(tmp_path, 0)
        states = [shard.state for shard in run.status().shards]
        assert states == [JobState.RUNNING, JobState.PENDING, JobState.PENDING]
        assert [shard.job_id for shard in run.status().shards] == ["1+3", "1+4", "1+5"]
        assert "2 of them: QUEUED" in espnet3("status", run.path, cwd=tmp_path, code=UNFINISHED)
        assert run.cancel(grace=0.2).counts == {JobState.CANCELLED: 3}
        assert queue.unfinished() == []
        let_go(tmp_path, 0, dead=True)
        run.retry()
        assert run.wait(600).done, (run.status(), dict(run.logs()))
        espnet3("merge", run.path, cwd=tmp_path)
    finally:
        shut(run)
    assert (tmp_path / "run/results.jsonl").read_bytes() == here(tmp_path / "b", n=6)
    assert calls(tmp_path) == {i: 2 if i == 0 else 1 for i in range(6)}
