"""`espnet3-parallel doctor`: what it finds before anything is queued, and what it says it could not check."""

import fcntl
import json
import os
import platform
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from espnet3_parallel.doctor import doctor
from espnet3_parallel.importable import Facts, differences
from tests.cli.test_configs import OPTIONS
from tests.standins import standin


def test_doctor_works_without_the_scheduler_and_says_what_it_could_not_check(conf, tmp_path, monkeypatch):
    """Where the submit command is missing, all else is checked, and the exit code is 0."""
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(doctor, [conf("slurm", OPTIONS["slurm"])])
    assert done.exit_code == 0, done.output
    assert "ok  package dask_jobqueue is installed" in done.output
    assert "not checked  the scheduler: sbatch is not on the PATH" in done.output
    assert f"not checked  that workers see {tmp_path} and {sys.executable}: --start asks one" in done.output
    assert done.output.endswith("6 checks, 0 wrong, 4 not made\n")


def test_doctor_runs_an_item_where_there_is_a_scheduler(conf, tmp_path):
    """`--start` submits one job, runs one item on its worker, and leaves nothing."""
    with standin("pbs") as queue:
        done = CliRunner().invoke(doctor, [conf("pbs", "cores: 1, memory: 1GB, interface: lo", 4), "--start"])
        assert done.exit_code == 0, done.output
        assert "ok  qstat answers" in done.output
        assert "ok  one item ran on " in done.output and "--start" not in done.output
        assert len(queue.jobs()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["conf.yaml"]


def test_doctor_tries_a_block_of_this_machine_without_dask(conf, monkeypatch):
    """`--start` runs an item in a worker process of its own; as JSON the findings are the same."""
    for name in ("dask", "distributed", "tornado"):
        monkeypatch.setitem(sys.modules, name, None)  # the import system's own "not installed"
    done = CliRunner().invoke(doctor, [conf("local", "", 2), "--start", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["wrong"] == 0 and said["checks"] == sum(one["good"] is not None for one in said["findings"])
    (ran,) = [one["text"] for one in said["findings"] if one["text"].startswith("one item ran on ")]
    assert not ran.endswith(f"process {os.getpid()}")
    assert CliRunner().invoke(doctor, ["--start"]).exit_code == 2


def test_doctor_shows_why_a_request_can_never_run(tmp_path, monkeypatch):
    """The scheduler's own comment on a job that no node can take is in the message."""
    monkeypatch.chdir(tmp_path)
    options = "cores: 64, memory: 1GB, interface: lo, walltime: 10m"
    (tmp_path / "conf.yaml").write_text(
        f"parallel:\n  env: pbs\n  n_workers: 1\n  start_timeout: 4\n  options: {{{options}}}\n"
    )
    with standin("pbs"):
        done = CliRunner().invoke(doctor, ["conf.yaml", "--start"])
    assert done.exit_code == 1
    assert "WRONG  no item could be run" in done.output
    assert "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 8 T: 8)" in done.output


CODE = """
from espnet3.parallel import BaseRunner, EnvironmentProvider
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}
class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx
class Other:
    pass
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Put modules beside the configuration; forget them afterwards."""
    before = list(sys.path)
    for name, text in {
        "doctored": CODE,
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


@contextmanager
def opened(folder):
    """Open a folder, by a descriptor that no other process has: a high one."""
    low = os.open(folder, os.O_RDONLY)
    number = fcntl.fcntl(low, fcntl.F_DUPFD, 800)
    try:
        yield number
    finally:
        os.close(low)
        os.close(number)


LOCAL = "processes: true"


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
        (["--runner", "doctored:Other"], "the runner doctored:Other: it is not a subclass of BaseRunner"),
        (["--runner", "doctored_fails:Runner"], "doctored_fails cannot be imported: OSError: no corpus"),
        (["--runner", "doctored_ends:Runner"], "doctored_ends cannot be imported: SystemExit: 2"),
        (["--runner", "doctored_method:Runner"], "Runner.forward must be static"),
    ],
    ids=["form", "module", "slip", "other", "raises", "exits", "method"],
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
    options = f"{OPTIONS['slurm']}, python: {sys.executable} -B"
    done = CliRunner().invoke(doctor, [conf("slurm", options), *words])
    assert done.exit_code == 0, done.output
    assert f"ok  the jobs' Python {sys.executable} -B fits: {platform.python_version()}, " in done.output


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "[Errno 2] No such file or directory: '/no/such/python'"),
        ("/bin/false", "/bin/false cannot import espnet3.parallel"),
    ],
)
def test_doctor_says_what_is_wrong_with_the_jobs_python(python, said, conf):
    """An interpreter that is missing, or lacks the package, is found before a job is queued."""
    done = CliRunner().invoke(doctor, [conf("slurm", f"{OPTIONS['slurm']}, python: {python}")])
    assert done.exit_code == 1
    assert f"WRONG  the jobs' Python: {said}" in done.output


def test_what_keeps_two_processes_apart_is_named():
    """Another Python, version of a package or copy of the code is a difference; a patch level is not."""
    here = Facts("3.11.7", {"dask": "2026.8.0", "cloudpickle": "3.1"}, "/", {"runner": "/here/mine.py"})
    same = replace(here, python="3.11.2", cwd="/b")
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
    """Where GPUs are not, that is found without starting anything, and without dask-cuda."""
    monkeypatch.setattr("espnet3.parallel.backends.machine.gpus_of_machine", list)
    done = CliRunner().invoke(doctor, [conf("local_gpu", "", 2)])
    assert done.exit_code == 1
    assert "WRONG  n_workers = 2: env local_gpu needs as many GPUs, and visible are: none" in done.output


PBS = "cores: 1, memory: 1GB, interface: lo"


def test_doctor_has_a_worker_look_at_folders(conf, tmp_path):
    """A folder is seen when each side reads what the other has written; one not made yet is asked by its parent."""
    (tmp_path / "runs").mkdir()
    with standin("pbs"):
        words = [conf("pbs", PBS), "--start", "--folder", "runs", "--folder", "runs/tonight/decode"]
        done = CliRunner().invoke(doctor, words)
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}/runs can be written to; runs/tonight/decode is not there yet" in done.output
    assert f"ok  the worker sees {tmp_path}\n" in done.output
    assert done.output.count(f"ok  the worker sees {tmp_path}/runs\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conf.yaml", "runs"]
    assert not list((tmp_path / "runs").iterdir())


def test_doctor_says_that_workers_do_not_see_a_folder(conf, tmp_path):
    """A folder that only this process has, here through a descriptor of its own, is named with what to do."""
    (tmp_path / "mine").mkdir()
    with standin("pbs"), opened(tmp_path / "mine") as number:
        path = f"/proc/self/fd/{number}"
        done = CliRunner().invoke(doctor, [conf("pbs", PBS), "--start", "--folder", path])
    assert done.exit_code == 1
    assert f"ok  the worker sees {tmp_path}\n" in done.output
    assert f"WRONG  the worker does not see {path}: there is no such folder there; take" in done.output
    assert not list((tmp_path / "mine").iterdir())


def test_doctor_says_that_a_folder_cannot_be_written_to(conf):
    """A folder that cannot be written to is found here, and no worker is started."""
    with standin("pbs") as queue:
        done = CliRunner().invoke(doctor, [conf("pbs", PBS), "--start", "--folder", "/proc/new"])
        assert not queue.jobs()
    assert done.exit_code == 1
    assert (
        "WRONG  /proc cannot be written to: No such file or directory; /proc/new is not there yet"
        in done.output
    )
