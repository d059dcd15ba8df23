"""`espnet3-parallel plan` and `espnet3-parallel doctor`, against golden files and without a scheduler."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from espnet3.parallel.backends import BACKENDS
from espnet3_parallel.configs import plan
from espnet3_parallel.doctor import doctor

ROOT = Path(__file__).resolve().parents[2]
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


def test_each_scheduler_has_a_golden_file():
    """The table's schedulers are those whose job scripts are pinned."""
    assert {row.name for row in BACKENDS.values() if row.scheduler} == set(OPTIONS)


@pytest.mark.parametrize("env", OPTIONS)
def test_the_job_script_is_the_golden_one(env, conf, tmp_path):
    """`plan` prints both scripts, of a driver and detached; ESPNET3_GOLDEN=write makes the file anew."""
    done = CliRunner().invoke(plan, [conf(env, OPTIONS[env])])
    assert done.exit_code == 0, done.output
    printed = done.output.replace(sys.executable, "PYTHON").replace(shlex.quote(str(tmp_path)), "HERE")
    printed = printed.replace(str(ROOT), "ROOT")
    golden = GOLDEN / f"{env}.txt"
    if os.environ.get("ESPNET3_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(printed)
    assert printed == golden.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["conf.yaml"]
    said = json.loads(CliRunner().invoke(plan, ["conf.yaml", "--json"]).stdout)
    assert said["driver"]["script"].rstrip() in done.output and said["detached"]["script"] in done.output


def test_a_local_block_has_no_script(conf):
    """Where nothing is submitted, that is said."""
    done = CliRunner().invoke(plan, [conf("local", "", 2)])
    assert done.output == "2 workers, processes of this machine: no job script\n"


@pytest.mark.parametrize("verb", [plan, doctor])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parallel: {env: slrum}", "Did you mean 'slurm'?"),
        ("parallel: {env: slurm, options: {cores: 1, memory: 1GB, quue: x}}", "Did you mean 'queue'?"),
        ("parallel: ${missing}", "parallel: Interpolation key 'missing' not found; define it"),
        ("parallel: {options: {memory_limit: lots}}", "options.memory_limit = 'lots': must be a size"),
        ("trainer: {devices: 2}", "n_workers: 4}; the file has trainer"),
        ("a: [", "is not YAML"),
        (
            "parallel: local",
            "conf.yaml: parallel = 'local': must be a block of lines, such as parallel: {env: local",
        ),
        (
            "parallel:\n\tenv: local\n",
            "is not YAML: while scanning for the next token\nfound character '\\t'",
        ),
    ],
)
def test_what_is_wrong_is_said_at_every_level(verb, text, said, tmp_path):
    """A slip in env, key, option or value is explained, with exit code 1 and without a traceback."""
    (tmp_path / "conf.yaml").write_text(text)
    done = CliRunner().invoke(verb, [str(tmp_path / "conf.yaml")])
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("verb", ["plan", "doctor"])
def test_a_warning_names_the_file_on_one_line(verb, tmp_path):
    """An ignored key is named in one line with the file's name, without a line of another program."""
    file = tmp_path / "conf.yaml"
    file.write_text("parallel: {env: local, colour: red}\n")
    code = f"from espnet3_parallel.main import main; main([{verb!r}, {str(file)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {file}: The parallel config: colour = 'red' is ignored")


@pytest.mark.parametrize("verb", [plan, doctor])
def test_a_scheduler_package_that_is_missing_is_named_with_its_line(verb, conf, monkeypatch):
    """On a machine without dask-jobqueue, where options cannot be read, the answer is how to install it."""
    for name in ("dask_jobqueue", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)  # the import system's own "not installed"
    done = CliRunner().invoke(verb, [conf("slurm", "cores: 1, memory: 1GB, queu: x")])
    assert done.exit_code == 1 and "dask_jobqueue" in done.output
    assert "[jobqueue]'" in " ".join(done.output.split())


def test_an_interface_that_this_machine_lacks(conf):
    """The script can be printed where the run will not start: `plan` warns, and `doctor` finds it wrong."""
    file = conf("slurm", "cores: 1, memory: 1GB, interface: ib0, scheduler_options: {interface: ib1}")
    done = CliRunner().invoke(plan, [file])
    assert done.exit_code == 0 and "#SBATCH" in done.stdout and "--interface ib0" in done.stdout
    warning = (
        "warning: options.scheduler_options.interface = 'ib1': this machine has no such network interface"
    )
    assert warning in done.stderr and "ib0'" not in done.stderr  # that of the nodes
    done = CliRunner().invoke(doctor, [file])
    assert done.exit_code == 1 and "WRONG  options.scheduler_options.interface = 'ib1'" in done.stdout
