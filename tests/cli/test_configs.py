"""`espnet3 plan` and `espnet3 doctor`, against golden files and without a scheduler."""

import os
import platform
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from espnet3.cli import configs
from espnet3.cli.configs import doctor, plan
from espnet3.cli.importable import Facts, differences
from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.testing import standin

GOLDEN = Path(__file__).parent / "golden"
COMMON = "queue: gpu, cores: 4, memory: 32GB, walltime: 4h, interface: lo"
OPTIONS = {
    "slurm": f'{COMMON}, account: my-lab, job_extra_directives: ["--gres=gpu:1"]',
    "pbs": f"{COMMON}, account: my-lab",
    "sge": COMMON,
    "lsf": f"{COMMON}, lsf_units: mb",
    "moab": f"{COMMON}, account: my-lab",
    "oar": f"{COMMON}, memory_per_core_property_name: memcore",
    "htcondor": "cores: 4, memory: 32GB, disk: 4GB, interface: lo",
}


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Write a configuration into the folder of the test, and go there."""
    monkeypatch.chdir(tmp_path)

    def write(env, options, n_workers=16):
        (tmp_path / "conf.yaml").write_text(
            f"parallel:\n  env: {env}\n  n_workers: {n_workers}\n  options: {{{options}}}\n"
        )
        return "conf.yaml"

    return write


def test_each_scheduler_has_a_golden_file():
    """The table's schedulers are those whose job scripts are pinned."""
    assert {row.name for row in BACKENDS.values() if row.queue} == set(OPTIONS)


@pytest.mark.parametrize("env", OPTIONS)
def test_the_job_script_is_the_golden_one(env, conf, tmp_path):
    """`espnet3 plan` prints this script; ESPNET3_GOLDEN=write makes the file anew."""
    done = CliRunner().invoke(plan, [conf(env, OPTIONS[env])])
    assert done.exit_code == 0, done.output
    printed = done.output.replace(sys.executable, "PYTHON").replace(shlex.quote(str(tmp_path)), "HERE")
    golden = GOLDEN / f"{env}.txt"
    if os.environ.get("ESPNET3_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(printed)
    assert printed == golden.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["conf.yaml"]


def test_a_local_block_has_no_script(conf):
    """Where nothing is submitted, that is said."""
    done = CliRunner().invoke(plan, [conf("local", "", 2)])
    assert done.output == "2 workers, processes of this machine: no job script\n"


@pytest.mark.parametrize("verb", [plan, doctor])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parallel: {env: slrum}", "Did you mean 'slurm'?"),
        (
            "parallel: {env: slurm, n_worker: 2, options: {cores: 1, memory: 1GB}}",
            "Did you mean 'n_workers'?",
        ),
        ("parallel: {env: slurm, options: {cores: 1, memory: 1GB, quue: x}}", "Did you mean 'queue'?"),
        (
            "parallel: {env: slurm, options: {cores: 1, memory: 1GB, interface: lo0}}",
            "no such network interface",
        ),
        ("trainer: {devices: 2}", "has no block named parallel; it has trainer"),
        ("[1, 2]", "holds no mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_what_is_wrong_is_said_at_every_level(verb, text, said, tmp_path):
    """A slip in env, key, option or value is explained, with exit code 1 and without a traceback."""
    (tmp_path / "conf.yaml").write_text(text)
    done = CliRunner().invoke(verb, [str(tmp_path / "conf.yaml")])
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output


def test_doctor_works_without_the_scheduler_and_says_what_it_could_not_check(conf, monkeypatch):
    """Where the submit command is missing, all else is checked, and the exit code is 0."""
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(doctor, [conf("slurm", OPTIONS["slurm"])])
    assert done.exit_code == 0, done.output
    assert "ok  package dask_jobqueue is installed" in done.output
    assert "not checked  the scheduler: sbatch is not on the PATH" in done.output
    assert "not checked  that the nodes see" in done.output
    assert done.output.endswith("8 checks, 0 wrong\n")


def test_doctor_runs_an_item_where_there_is_a_scheduler(conf, tmp_path):
    """`--start` submits one job, runs one item on its worker, and leaves nothing."""
    with standin("pbs") as queue:
        done = CliRunner().invoke(doctor, [conf("pbs", "cores: 1, memory: 1GB, interface: lo", 4), "--start"])
        assert done.exit_code == 0, done.output
        assert "ok  qstat answers" in done.output
        assert "ok  one item ran on " in done.output
        assert len(queue.jobs()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["conf.yaml"]


def test_doctor_says_why_no_item_could_be_run(conf):
    """A queue that does not exist is found by `--start`."""
    with standin("pbs"):
        done = CliRunner().invoke(
            doctor, [conf("pbs", "cores: 1, memory: 1GB, interface: lo, queue: nosuch"), "--start"]
        )
    assert done.exit_code == 1
    assert "WRONG  no item could be run: no job was queued" in done.output
    assert "Unknown queue" in done.output


CODE = """
from espnet3.parallel import BaseRunner, EnvironmentProvider


class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


class Half(EnvironmentProvider):
    pass


class Other:
    pass
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Put modules beside the configuration; forget them afterwards."""
    before = list(sys.path)
    for name, text in {
        "doctored": CODE,
        "doctored_lacks": "import no_such_package_here",
        "doctored_fails": "raise OSError('no corpus')",
        "doctored_ends": "raise SystemExit(2)",
        "doctored_method": CODE.replace(
            "    @staticmethod\n    def forward(idx)", "    def forward(self, idx)"
        ),
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield
    sys.path[:] = before
    for name in [each for each in sys.modules if each.startswith("doctored")]:
        del sys.modules[name]


LOCAL = "processes: true"


def test_doctor_imports_runner_and_provider(conf, code, tmp_path):
    """What can be imported is said with its file."""
    words = ["--runner", "doctored:Runner", "--provider", "doctored:Provider"]
    done = CliRunner().invoke(doctor, [conf("local", LOCAL, 2), *words])
    assert done.exit_code == 0, done.output
    assert f"ok  the runner doctored:Runner can be imported: {tmp_path}/doctored.py" in done.output
    assert f"ok  the provider doctored:Provider can be imported: {tmp_path}/doctored.py" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--runner", "Runner"],
            "the runner Runner: write it as module:Class, such as my_recipe.decode:Runner",
        ),
        (
            ["--runner", "doctored_absent:Runner"],
            "there is no module doctored_absent; call this where you call",
        ),
        (["--runner", "doctored:Runer"], "doctored has no Runer. Did you mean 'Runner'?"),
        (["--runner", "doctored:Other"], "the runner doctored:Other: it is no subclass of BaseRunner"),
        (["--provider", "doctored:Runner"], "it is no subclass of EnvironmentProvider"),
        (["--provider", "doctored:Half"], "it does not define build_env_local"),
        (["--runner", "doctored_lacks:Runner"], "cannot be imported: No module named 'no_such_package_here'"),
        (["--runner", "doctored_fails:Runner"], "doctored_fails cannot be imported: OSError: no corpus"),
        (["--runner", "doctored_ends:Runner"], "doctored_ends cannot be imported: SystemExit: 2"),
        (["--runner", "doctored_method:Runner"], "Runner.forward must be static"),
    ],
    ids=["form", "module", "slip", "other", "kind", "half", "package", "raises", "exits", "method"],
)
def test_doctor_says_why_a_class_cannot_be_used(words, said, conf, code):
    """Each mistake in a reference or its module is explained, with exit code 1 and without a traceback."""
    done = CliRunner().invoke(doctor, [conf("local", LOCAL, 2), *words])
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output


def test_doctor_asks_the_jobs_own_python(conf, code, monkeypatch):
    """The Python of `options.python` imports the classes too, and its versions are compared with ours."""
    monkeypatch.setenv("PATH", "")
    words = ["--runner", "doctored:Runner"]
    options = f"{OPTIONS['slurm']}, python: {sys.executable}"
    done = CliRunner().invoke(doctor, [conf("slurm", options), *words])
    assert done.exit_code == 0, done.output
    assert f"ok  the jobs' Python {sys.executable} fits: {platform.python_version()}, " in done.output


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "cannot be started: No such file"),
        ("/bin/false", "cannot import espnet3.parallel"),
    ],
)
def test_doctor_says_what_is_wrong_with_the_jobs_python(python, said, conf):
    """An interpreter that is missing, or lacks the package, is found before a job is queued."""
    done = CliRunner().invoke(doctor, [conf("slurm", f"{OPTIONS['slurm']}, python: {python}")])
    assert done.exit_code == 1
    assert f"WRONG  the jobs' Python: {python} {said}" in done.output


def test_what_keeps_two_processes_apart_is_named():
    """Another Python, version of a package or copy of the code is a difference; a patch level is not."""
    here = Facts("3.11.7", "/a", {"dask": "2026.8.0", "cloudpickle": "3.1"}, "/", {"runner": "/here/mine.py"})
    same = replace(here, python="3.11.2", executable="/b", cwd="/b")
    assert differences(here, same) == []
    there = replace(here, python="3.12.1", versions={"dask": "2025.1"}, files={"runner": "/there/mine.py"})
    assert differences(here, there) == [
        "Python is 3.12.1 there and 3.11.7 here: use the same minor version",
        "dask is 2025.1 there and 2026.8.0 here: install dask==2026.8.0",
        "cloudpickle is not installed there and 3.1 here: install cloudpickle==3.1",
        "the runner is imported from /there/mine.py there and /here/mine.py here: is it another copy?",
    ]


def test_doctor_lets_a_worker_import_them(conf, code, tmp_path):
    """`--start` has the worker import runner and provider, and compares it with this process."""
    with standin("pbs"):
        block = conf("pbs", "cores: 1, memory: 1GB, interface: lo")
        done = CliRunner().invoke(doctor, [block, "--start", "--runner", "doctored:Runner"])
    assert done.exit_code == 0, done.output
    assert f"ok  the worker fits: Python {platform.python_version()}, " in done.output
    assert done.output.rstrip().endswith("0 wrong")


def test_doctor_says_when_there_are_fewer_gpus_than_workers(conf, monkeypatch):
    """Where dask-cuda is there and GPUs are not, that is found without starting anything."""
    monkeypatch.setattr(configs, "load_cluster_class", lambda row: None)
    monkeypatch.setattr("espnet3.parallel.launchers.cluster_gpu.gpus_of_machine", list)
    done = CliRunner().invoke(doctor, [conf("local_gpu", "", 2)])
    assert done.exit_code == 1
    assert "WRONG  n_workers = 2: env local_gpu needs as many GPUs, and NVML finds no GPU" in done.output
