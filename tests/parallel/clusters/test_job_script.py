"""What is written into a job's script runs nothing but the worker, whatever the options hold."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, get_client
from espnet3.parallel.backends import row
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig
from tests.standins import standin

REQUIRED: dict[str, Any] = {"cores": 1, "memory": "1GB"}
OPTIONS = {
    "slurm": ["queue", "account", "job_name", "job_mem", "shebang", "python", "local_directory", "name"],
    "pbs": ["queue", "account", "job_name", "resource_spec", "shebang", "worker_command"],
    "sge": ["queue", "project", "job_name", "resource_spec"],
    "lsf": ["queue", "project", "job_name"],
    "moab": ["queue", "account", "job_name"],
    "oar": ["queue", "project", "job_name", "resource_spec"],
}
SCRIPTS = sorted(OPTIONS)
BREAKS = ["\n", "\r", "\x0b", "\u2028"]


def block(env: str, **options: Any) -> dict[str, Any]:
    disk = {"disk": "1GB"} if env == "htcondor" else {}
    return {"env": env, "n_workers": 2, "options": {**REQUIRED, **disk, **options}}


@pytest.mark.parametrize("env", SCRIPTS)
def test_a_line_break_in_an_option_is_refused(env: str) -> None:
    """No option can begin a line of its own, with a driver or in a detached run: the same check is before both."""
    for name, line_break in itertools.product(OPTIONS[env], BREAKS):
        with pytest.raises(ConfigError, match=rf"options\.{name} = .*holds a line break"):
            ParallelConfig.parse(block(env, **{name: f"a{line_break}touch x"}))


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ("slurm", "job_extra_directives", ["--exclusive", "-x n1\ntouch x"]),
        ("htcondor", "job_extra_directives", {"requirements": "true\nqueue 9"}),
        ("htcondor", "job_extra_directives", {"a\nqueue 9": "true"}),
    ],
)
def test_a_line_break_inside_a_list_or_mapping_is_refused(env: str, name: str, value: Any) -> None:
    """Lists and mappings are looked into."""
    with pytest.raises(ConfigError, match=rf"options\.{name} = .*holds a line break"):
        ParallelConfig.parse(block(env, **{name: value}))


@pytest.mark.parametrize("value", ["1\n", "two"])
def test_a_number_of_cores_that_is_none_is_refused_in_words(value: Any) -> None:
    """`job_cpu` is no TypeError at the start of the cluster."""
    with pytest.raises(ConfigError, match=r"options\.job_cpu = .*(line break|must be a positive integer)"):
        ParallelConfig.parse(block("slurm", job_cpu=value))


def test_words_with_half_a_quotation_are_refused() -> None:
    """A quotation mark without its partner would take in the rest of the script."""
    with pytest.raises(ConfigError, match="cannot be read as words of a shell: no closing quotation"):
        ParallelConfig.parse(block("slurm", worker_extra_args=["--resources 'A=1"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker_extra_args": ["--no-such=1"]}, "'--no-such' is no option of Dask's worker"),
        ({"worker_extra_args": ["--resources A=1", "--lifetme 5m"]}, "Did you mean '--lifetime'"),
        ({"interface": "ib7"}, "options.interface = 'ib7': this machine has no such network interface"),
        ({"log_directory": "/proc/logs"}, "jobs cannot write their logs there"),
    ],
    ids=["argument", "slip", "interface", "logs"],
)
def test_an_option_that_does_not_fit_is_refused_before_a_job_is_queued(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """An argument that Dask's worker does not know, no such interface, a folder for logs that cannot be made."""
    with standin("moab") as queue:
        config = block("moab", **{"interface": "lo", **options})
        with pytest.raises(ConfigError, match=re.escape(said)), get_client(config):
            pass
        assert queue.jobs() == []
    assert not list(tmp_path.iterdir())


def run_script(env: str, folder: Path, **options: Any) -> list[str]:
    """Run the script that a block would submit, with an interpreter that prints its arguments; return them."""
    config = ParallelConfig.parse(block(env, **options))
    script = plan_jobs(row(env), config).script
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        env={**os.environ, "SCRATCH": "/scratch of mine"},
        capture_output=True,
        text=True,
        check=True,
    )
    arguments: list[str] = json.loads(done.stdout)
    return arguments


@pytest.mark.parametrize("env", SCRIPTS)
def test_the_words_of_the_worker_command_are_quoted(env: str, tmp_path: Path) -> None:
    """Command substitution, separators and spaces stay text; `$NAME` is what the node has; quoted words stay whole."""
    python = tmp_path / "a b;touch by-python"
    python.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    python.chmod(0o755)
    arguments = run_script(
        env,
        tmp_path,
        python=str(python),
        local_directory="$SCRATCH/$(touch by-folder)/${SCRATCH}`touch by-folder`",
        worker_extra_args=["--resources 'A=1 B=2'", "--name-of", "$(touch by-args);touch by-args", "a|b>c"],
    )
    assert arguments[:2] == ["-m", "distributed.cli.dask_worker"]
    at = arguments.index("--local-directory")
    assert arguments[at + 1] == "/scratch of mine/$(touch by-folder)//scratch of mine`touch by-folder`"
    at = arguments.index("--resources")
    # as a shell would read it, so an own separator is a word's end and no more
    assert arguments[at + 1 : at + 6] == ["A=1 B=2", "--name-of", "$(touch", "by-args);touch", "by-args"]
    assert arguments[at + 6] == "a|b>c"
    assert not list(tmp_path.glob("by-*"))


@pytest.mark.parametrize("env", ["moab", "lsf"])
def test_a_current_folder_with_a_space_is_refused_with_the_reason(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directive would end at the space; nothing is submitted, and no folder is left."""
    here = tmp_path / "my runs"
    here.mkdir()
    monkeypatch.chdir(here)
    with (
        standin(env) as queue,
        pytest.raises(
            ConfigError, match=rf"the current folder.*my runs.*{env} cannot be told.*log_directory"
        ),
        get_client(block(env, interface="lo")),
    ):
        pass
    assert queue.jobs() == []
    assert not list(here.iterdir())
    config = ParallelConfig.parse(block("slurm"))
    with pytest.raises(ConfigError, match="the current folder.*slurm cannot be told"):
        plan_jobs(row("slurm"), config)


@pytest.mark.parametrize(
    ("env", "asks"),
    [
        ("slurm", {"job_extra_directives": ["--gres=gpu:1"]}),
        ("pbs", {"resource_spec": "select=1:ncpus=8:ngpus=1"}),
        ("htcondor", {"job_extra_directives": {"request_gpus": "1"}}),
    ],
)
def test_a_worker_with_a_gpu_runs_one_item_at_a_time(env: str, asks: dict[str, Any]) -> None:
    """Eight cores beside a GPU are for loading data: eight items at once would share one model, unless asked for."""
    assert "--nthreads 1 " in script(env, **asks) + " "
    chosen = script(env, **asks, worker_extra_args=["--nthreads 4"])
    assert "--nthreads 4" in chosen and "--nthreads 1" not in chosen
    assert "--nthreads 1" not in script(env)


def script(env: str, **options: Any) -> str:
    config = ParallelConfig.parse(block(env, **{"cores": 8, **options}))
    return plan_jobs(row(env), config).script
