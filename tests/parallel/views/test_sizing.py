"""`espnet3-parallel size`: how large a job should be, from what an earlier run has measured."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from espnet3.parallel import ConfigError, ParallelConfig
from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.views.facts import read_facts
from espnet3.parallel.views.sizing import (
    JOB_START,
    Measured,
    around,
    measured_by,
    memory,
    most_workers,
    placed,
    recommended,
    size_for,
    walltime,
)
from espnet3_parallel.configs import size
from tests.parallel.detached.work import Provider, Squares, run_of, shut

MEASURED = Measured(seconds=2.0, start=30.0, env=25.0, items=50)


def test_a_time_decides_how_many_workers() -> None:
    """As few workers as are done in time, and one fewer would not be."""
    chosen = recommended(MEASURED, 10_000, within=3600)
    assert chosen.wall <= 3600 < size_for(MEASURED, 10_000, chosen.workers - 1).wall
    assert chosen.worker_hours == pytest.approx((20_000 + 30 * chosen.workers) / 3600)


def test_what_cannot_be_is_refused() -> None:
    """A time that is shorter than one item, or that takes too many workers, is an error that says so."""
    with pytest.raises(ConfigError, match="no number of workers"):
        recommended(MEASURED, 10, within=31)
    with pytest.raises(ConfigError, match="allow more time"):
        recommended(MEASURED, 10_000_000, within=120)


def test_walltime_and_memory_have_room_to_spare() -> None:
    """Half as much again, rounded up to what people write."""
    assert (walltime(10), walltime(3600), walltime(100_000)) == ("00:10:00", "01:30:00", "41:40:00")
    assert (memory(10**6), memory(2 * 10**9)) == ("500MB", "3GB")


def test_the_options_that_are_printed_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block has walltime, what CONF had, and its workers unless a time was given; it is accepted."""
    monkeypatch.chdir(tmp_path)
    Squares(Provider({"folder": str(tmp_path)}), output_dir="run", progress=False)(range(20))
    Path("conf.yaml").write_text(
        "parallel: {env: slurm, n_workers: 2, options: {queue: cpu, cores: 1, memory: 777GB}}\n"
    )
    done = CliRunner().invoke(size, ["conf.yaml", "--items", "1000000", "--run", "run", "--within", "1"])
    assert done.exit_code == 0, done.output
    assert "<- --within 1\n" in done.output and "in a process" in done.output
    block = yaml.safe_load(done.output[done.output.index("parallel:") :])["parallel"]
    options = block["options"]
    assert options["queue"] == "cpu" and options["memory"] != "777GB" and options["walltime"].endswith(":00")
    assert ParallelConfig.parse(block).n_workers == block["n_workers"] >= 1
    kept = CliRunner().invoke(size, ["conf.yaml", "--items", "1000000", "--run", "run"])
    assert "<- n_workers of conf.yaml\n" in kept.output
    assert yaml.safe_load(kept.output[kept.output.index("parallel:") :])["parallel"]["n_workers"] == 2


def test_a_run_that_was_stopped_is_measured_by_its_recorded_times(tmp_path: Path) -> None:
    """A session that did not end has no figures: those of its items are taken, with the memory of its worker."""
    config = {"folder": str(tmp_path), "bad": [30, "raise"]}
    with pytest.raises(RuntimeError, match="no square"):
        Squares(Provider(config), output_dir=tmp_path / "run", progress=False)(range(40))
    found = measured_by(tmp_path / "run")
    assert 0 < found.items <= 31 and found.seconds > 0 and found.memory > 10**7


def test_a_machine_has_no_more_workers_than_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the work is; what would take more of them to be done in time is refused."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(3)))
    most = most_workers(BACKENDS["local"])
    assert most == 3 < most_workers(BACKENDS["slurm"])
    assert [one.workers for one in around(MEASURED, 10_000, size_for(MEASURED, 10_000, 3), most)] == [1, 3]
    with pytest.raises(ConfigError, match="more than 3 workers, as many as there are processors here"):
        recommended(MEASURED, 10_000, 3600, most)


def test_a_job_takes_half_a_minute_to_start_whatever_this_machine_takes() -> None:
    """Quick starts of processes here do not make a job of seconds on a cluster worth its start."""
    here = Measured(seconds=0.2, start=0.5, env=0.3, items=8)
    assert placed(here, BACKENDS["local"]) == here and placed(MEASURED, BACKENDS["slurm"]) == MEASURED
    with pytest.raises(ConfigError, match="no number of workers is done within 30 s"):
        recommended(placed(here, BACKENDS["slurm"]), 100_000, JOB_START)


def test_a_detached_run_tells_start_env_and_items_apart(tmp_path: Path) -> None:
    """Items count with their own time, not with their job's start, and the start is there."""
    run = run_of(tmp_path, n=4, workers=1, shards=2, config={"bad": [0.1, "slow"]})
    try:
        assert run.wait(600).done
    finally:
        shut(run)
    found, facts = measured_by(run.path), read_facts(run.path)
    assert found.items == 4 and found.seconds == facts.times.busy / 4 >= 0.1
    longest = max(span.end - span.begin for span in facts.shards)
    assert 0 < found.env <= found.start < longest


def test_a_run_without_times_is_refused(tmp_path: Path) -> None:
    """A run without a timed item says what to do."""
    config = {"folder": str(tmp_path), "bad": [0, "raise"]}
    with pytest.raises(RuntimeError, match="no square"):
        Squares(Provider(config), output_dir=tmp_path / "run", progress=False)(range(3))
    with pytest.raises(ConfigError, match="has been timed yet"):
        measured_by(tmp_path / "run")
