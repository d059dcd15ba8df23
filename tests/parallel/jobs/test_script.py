"""The script of a job: one function for workers on nodes and for detached shards, and one test for both."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError
from espnet3.parallel.backends import BACKENDS, row
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.launch.job_arrays import Array, check, make_job, script
from espnet3.parallel.detached.layout import Plan
from espnet3.parallel.jobs import script as job_script
from espnet3.parallel.jobs.script import avoiding
from tests.habits import rows

SCHEDULERS = [name for name, each in BACKENDS.items() if each.scheduler is not None]
TIMED = [name for name in SCHEDULERS if name != "htcondor"]
OWN: dict[str, dict[str, Any]] = {
    "lsf": {"lsf_units": "mb"},
    "htcondor": {"disk": "1GB"},
    "oar": {"memory_per_core_property_name": "not_applicable"},
}
SEES = 'import json, os, sys; print(json.dumps([sys.argv[1:], os.environ["PYTHONPATH"], dict(os.environ)]))'


def config_of(env: str, **options: Any) -> ParallelConfig:
    given = {"cores": 1, "memory": "1GB", **OWN.get(env, {}), **options}
    return ParallelConfig.parse({"env": env, "n_workers": 2, "options": given})


def of_a_worker(config: ParallelConfig) -> str:
    return plan_jobs(row(config.env), config).script


def of_a_shard(config: ParallelConfig) -> str:
    plan = Plan("", [0], "specs", config.env, 2, dict(config.options), {})
    array = Array(plan, make_job(plan), 2, 2, os.getcwd(), Path("tasks").absolute(), requeue=False)
    return f"{script(array)}\n{array.job.job_header}"  # which is not in the script of OAR


Text = Callable[[ParallelConfig], str]
USERS: list[Text] = [of_a_worker, of_a_shard]
PROLOGUES = {"csh": "setenv OF_USER 'a b'", "tcsh": "setenv OF_USER 'a b'", "fish": "set -x OF_USER 'a b'"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("of_a", USERS)
@pytest.mark.parametrize("env", ["slurm", "pbs", "moab"])
@pytest.mark.parametrize("shell", ["sh", "bash", "csh", "tcsh", "fish"])
def test_any_shell_reads_a_script(
    shell: str, env: str, of_a: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our lines set variables and start the interpreter in the shell that the user's own lines are written for."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed here")
    monkeypatch.setattr(job_script, "import_path", lambda: "/my code")
    (tmp_path / "look at!.py").write_text(SEES)
    prologue = PROLOGUES.get(shell, "export OF_USER='a b'")
    options = {
        "python": f"{sys.executable} 'look at!.py'",
        "job_script_prologue": [prologue],
        "shebang": f"#!{path}",
    }
    text = of_a(config_of(env, **options, log_directory=str(tmp_path / "logs")))
    index = {"SLURM_ARRAY_TASK_ID": "1", "PBS_ARRAY_INDEX": "1", "PBS_ARRAYID": "1", "PBS_JOBID": "7"}
    surroundings = {**os.environ, **index, "PYTHONPATH": "before"}
    (tmp_path / "job").write_text(text)
    done = subprocess.run([path, "job"], capture_output=True, text=True, env=surroundings, check=False)
    printed = done.stdout or "".join(file.read_text() for file in tmp_path.rglob("*.out"))
    assert printed, (text, done.stderr)
    words, python_path, seen = json.loads(printed)
    assert seen["OF_USER"] == "a b"
    assert python_path == "/my code:before"
    if of_a is of_a_shard:
        assert words == ["-m", "espnet3.parallel.worker", "--tasks", str(tmp_path / "tasks"), "1"]
    else:
        assert words[:2] == ["-m", "distributed.cli.dask_worker"]
        assert os.path.isdir(seen["DASK_TEMPORARY_DIRECTORY"])
        os.rmdir(seen["DASK_TEMPORARY_DIRECTORY"])


@pytest.mark.parametrize("of_a", USERS)
@pytest.mark.parametrize("env", ["pbs", "sge", "moab"])
@pytest.mark.parametrize(
    ("options", "shell"),
    [
        ({}, "/bin/bash"),
        ({"shebang": "#!/usr/bin/env -S tcsh -f"}, "/bin/tcsh"),
        ({"job_extra_directives": ["-S /opt/zsh"]}, "/opt/zsh"),
    ],
)
def test_a_script_runs_in_the_shell_named(options: dict[str, Any], shell: str, env: str, of_a: Text) -> None:
    """Schedulers that take another shell are told it once, unless the user has told one."""
    assert re.findall(r" -S (\S+)\n", of_a(config_of(env, **options))) == [shell]


@pytest.mark.parametrize("of_a", USERS)
@pytest.mark.parametrize(
    ("python", "start"),
    [
        ("apptainer exec my.sif python", "exec apptainer exec my.sif python -m "),
        ("envs/my python", r"exec \S*{here}/envs/my python\S -m "),
        ("$CONDA/bin/python -u", r"exec .?\$CONDA/bin/python.? -u -m "),
        ("~/bin/python3", r"exec {home}/bin/python3 -m "),
    ],
)
def test_python_is_words_or_a_path(python: str, start: str, of_a: Text, tmp_path: Path) -> None:
    """A launcher with its words is taken apart; a path that is there is one word, whatever is in it."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/my python").touch()
    start = start.replace("{here}", str(tmp_path)).replace("{home}", os.path.expanduser("~"))
    assert re.search(start, of_a(config_of("slurm", python=python)))


@pytest.mark.parametrize("of_a", USERS)
@pytest.mark.parametrize("written", ["2-00:00:00", "48h", "1.5 days 12 hours", "48:00:00"])
@pytest.mark.parametrize("env", TIMED)
def test_a_walltime_is_written_as_the_scheduler_reads_it(env: str, written: str, of_a: Text) -> None:
    """Two days are 48:00:00 or 48:00, however they were written."""
    record = row(env).scheduler
    assert record is not None
    text = of_a(config_of(env, walltime=written))
    wanted = "48:00:00" if record.writes_seconds else "48:00"
    assert re.search(rf"[ =]{wanted}$", text, re.MULTILINE), text


@pytest.mark.parametrize("minutes", [1, 10, 240, 2880])
def test_a_worker_has_time_for_its_last_items(minutes: int) -> None:
    """The worker that leaves last takes no work while a tenth of its walltime, or four minutes, are left."""
    words = of_a_worker(config_of("slurm", walltime=f"{minutes}m"))
    lifetime, stagger = (int(seconds) for seconds in re.findall(r"--lifetime\S* (\d+)s", words))
    assert min(240, 6 * minutes) <= 60 * minutes - lifetime - stagger <= 300


@pytest.mark.parametrize("of_a", USERS)
@pytest.mark.parametrize(("env", "word"), [("slurm", "-t UNLIMITED"), ("sge", "h_rt=INFINITY")])
def test_a_job_without_an_end(env: str, word: str, of_a: Text) -> None:
    """UNLIMITED is written in the scheduler's word, and such a worker has no lifetime; others have none for it."""
    text = of_a(config_of(env, walltime="unlimited"))
    assert word in text and "--lifetime" not in text
    with pytest.raises(ConfigError, match="no word for a job without an end; write a time"):
        config_of("pbs", walltime="UNLIMITED")


@pytest.mark.parametrize(
    ("env", "own", "line"),
    [
        ("slurm", ["--exclude=n1,n[2-3]"], ["--exclude=n1,n[2-3],bad"]),
        ("slurm", ["--gres=gpu:1 -x n1", "--exclusive"], ["--gres=gpu:1", "--exclusive", "--exclude=n1,bad"]),
        ("slurm", ["-xn1", "--exclude n2"], ["--exclude=n1,n2,bad"]),
        ("sge", ["-l h=!(n1|n2)", "-V"], ["-V", "-l h=!(n1|n2|bad)"]),
        ("sge", ["-l gpu=1,hostname=!n1"], ["-l gpu=1", "-l h=!(n1|bad)"]),
        ("sge", ["-l 'h=!(n1)'", "-l h=!n2,gpu=1"], ["-l gpu=1", "-l h=!(n1|n2|bad)"]),
    ],
)
def test_nodes_that_the_user_keeps_away_from_stay_away(env: str, own: list[str], line: list[str]) -> None:
    """The user's own nodes are in the one directive of bad nodes."""
    record = row(env).scheduler
    assert record is not None
    assert avoiding(record, {"job_extra_directives": own}, ["bad"])["job_extra_directives"] == line
    spec = {"job_extra_directives": [], "resource_spec": "h=!(n1),gpu=1"}
    if env == "sge":
        assert avoiding(record, spec, ["bad"]) == {
            "job_extra_directives": ["-l h=!(n1|bad)"],
            "resource_spec": "gpu=1",
        }


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"interface": "ib7"}, ["options.interface = 'ib7'"]),
        ({"interface": "ib7", "scheduler_options": {"interface": "lo"}}, []),
        ({"interface": "ib7", "scheduler_options": {"host": "127.0.0.1"}}, []),
        ({"scheduler_options": {"interface": "ib7"}}, ["options.scheduler_options.interface = 'ib7'"]),
    ],
)
def test_an_interface_is_looked_for_where_it_is_used(options: dict[str, Any], wrong: list[str]) -> None:
    """That of the nodes is looked for here only where the scheduler has none of its own."""
    planned = plan_jobs(row("slurm"), config_of("slurm", **options))
    assert [warning.split(":")[0] for warning in planned.warnings] == wrong


@pytest.mark.parametrize(
    ("env", "directive", "folder"),
    [
        ("slurm", "-o logs/%x/%j.out", "logs"),
        ("slurm", "--mail-type=END --error=logs/err", "logs"),
        ("pbs", "-e node:/nowhere/at-all/x", "/nowhere/at-all"),
        ("sge", "-o logs/", "logs"),
        ("lsf", "-eo 'logs/%J.err'", "logs"),
        ("oar", "--stdout=logs/x", "logs"),
    ],
)
def test_output_in_a_folder_that_is_not_there_is_named(
    env: str, directive: str, folder: str, tmp_path: Path
) -> None:
    """Both users refuse a directive whose jobs would end at their start without a word, and name the folder."""
    config = config_of(env, job_extra_directives=[directive])
    (warning,) = plan_jobs(row(env), config).warnings
    with pytest.raises(ConfigError, match="there is no folder") as refused:
        check(config)
    assert str(tmp_path / folder) in warning and warning in str(refused.value)
    (tmp_path / "logs").mkdir()
    assert folder != "logs" or not plan_jobs(row(env), config).warnings


@pytest.mark.parametrize("env", rows(SCHEDULERS, ("slurm", "sge", "htcondor")))
def test_a_plan_says_what_is_left_to_others(env: str) -> None:
    """The walltime that the options leave out is said, and amounts that no directive of SGE asks for."""
    said = " ".join(plan_jobs(row(env), config_of(env)).remarks)
    assert ("walltime is " in said and f"jobqueue.{env}.walltime" in said) == (env != "htcondor")
    assert ("not asked for cores and memory" in said) == (env == "sge")
    if env != "htcondor":
        assert "walltime" not in " ".join(plan_jobs(row(env), config_of(env, walltime="1h")).remarks)


def test_memory_that_does_not_grow_is_said_by_both() -> None:
    """Memory that `resource_spec` asks for does not grow with a retry."""
    block = {
        "env": "pbs",
        "options": {"cores": 1, "memory": "1GB", "resource_spec": "select=1:mem=1gb"},
        "detached": {"retry_memory_factor": 2},
    }
    config = ParallelConfig.parse(block)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(config)
        planned = plan_jobs(row("pbs"), config).remarks
    for said in (" ".join(planned), " ".join(str(each.message) for each in caught)):
        assert "retry_memory_factor = 2 has no effect" in said
    fine = ParallelConfig.parse({**block, "options": {"cores": 1, "memory": "1GB", "walltime": "1h"}})
    assert plan_jobs(row("pbs"), fine).remarks == ()
