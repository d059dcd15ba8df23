"""The documents' texts stay as printed, and their configurations are carried out as far as this machine can."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner

from espnet3.parallel import ConfigError, get_client, set_parallel
from espnet3.parallel.errors import MissingPackageError
from espnet3_parallel.configs import plan
from tests.habits import rows
from tests.parallel.contract.work import Provider, Times
from tests.spec import documents

PRINTED = "9d6e3eb933c92fd9da1384780d292c4de96e756b0029e1ea74aa26f6ed1c509f"
BLOCKS: dict[str, dict[str, Any]] = {
    **{name: yaml.safe_load(text)["parallel"] for name, text in documents.PARALLEL_BLOCKS.items()},
    "parallel: SLURM": {
        **documents.SLURM_DICT,
        "options": {
            **documents.SLURM_DICT["options"],
            "job_extra_directives": sorted(documents.SLURM_DICT["options"]["job_extra_directives"]),
        },
    },
}
QUEUED = [name for name, block in BLOCKS.items() if block["env"] == "slurm"]
LOCAL = [name for name, block in BLOCKS.items() if block["env"] == "local"]
ON_GPUS = [name for name, block in BLOCKS.items() if block["env"] == "local_gpu"]


def test_the_texts_are_as_printed() -> None:
    """Nobody changes a printed text in passing: its file has the checksum it had when it was copied."""
    assert hashlib.sha256(Path(documents.__file__).read_bytes()).hexdigest() == PRINTED


def test_every_block_is_carried_out_somewhere() -> None:
    """Each printed `parallel` block is of a kind that one of the tests below takes."""
    assert sorted(QUEUED + LOCAL + ON_GPUS) == sorted(BLOCKS)


@pytest.mark.parametrize("name", rows(LOCAL, LOCAL[:1]))
def test_a_runner_runs_under_a_local_block(name: str) -> None:
    """A runner gives a plain loop's results under each local block, and has as many workers as it says."""
    registered = BLOCKS[name]
    set_parallel(registered)
    runner = Times(Provider({"factor": 3}))
    assert runner(range(40)) == [3 * idx for idx in range(40)]
    with get_client() as client:
        client.wait_for_workers(registered["n_workers"], timeout=600)
        threads = registered.get("options", {}).get("threads_per_worker", 1)
        assert list(client.nthreads().values()) == registered["n_workers"] * [threads]
        assert runner(range(40)) == [3 * idx for idx in range(40)]


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_gpu_block_is_refused_where_there_are_no_gpus(name: str) -> None:
    """Without GPUs, or the package for them, a run under a local_gpu block says what is missing."""
    set_parallel(BLOCKS[name])
    if shutil.which("nvidia-smi"):
        pytest.skip("there may be GPUs here")
    with pytest.raises((ConfigError, MissingPackageError), match="dask_cuda|GPU"):
        Times(Provider({"factor": 3}))(range(4))


def planned(block: dict[str, Any], folder: Path) -> Any:
    (folder / "conf.yaml").write_text(yaml.safe_dump({"parallel": block}))
    return CliRunner().invoke(plan, [str(folder / "conf.yaml")])


@pytest.mark.parametrize("name", QUEUED)
def test_a_schedulers_block_becomes_a_job_script(name: str, tmp_path: Path) -> None:
    """`espnet3-parallel plan` prints one job for each worker, with what the block asks for in it."""
    options = dict(BLOCKS[name]["options"])
    if "interface" in options:
        options["interface"] = "lo"  # the printed one is a cluster's: see below
    done = planned({**BLOCKS[name], "options": options}, tmp_path)
    assert done.exit_code == 0, done.output
    script = done.output.splitlines()
    assert script[0] == f"# {BLOCKS[name]['n_workers']} jobs of 1 worker each, by: sbatch SCRIPT"
    asked = [
        f"#SBATCH -p {options['queue']}",
        f"#SBATCH --cpus-per-task={options['cores']}",
        *(f"#SBATCH -A {account}" for account in [options.get("account")] if account),
        *(f"#SBATCH -t {walltime}" for walltime in [options.get("walltime")] if walltime),
        *(f"#SBATCH {directive}" for directive in options.get("job_extra_directives", [])),
        *options.get("job_script_prologue", []),
    ]
    assert [line for line in asked if line not in script] == []
    if "log_directory" in options:
        assert any(line.startswith("#SBATCH -o") and options["log_directory"] in line for line in script)


@pytest.mark.parametrize("name", [n for n in QUEUED if "interface" in BLOCKS[n]["options"]])
def test_a_clusters_network_interface_is_looked_for(name: str, tmp_path: Path) -> None:
    """Where the printed network interface is missing, the job script is printed with a warning that says so."""
    if BLOCKS[name]["options"]["interface"] in psutil.net_if_addrs():
        pytest.skip("this machine has it")
    done = planned(BLOCKS[name], tmp_path)
    assert done.exit_code == 0
    assert "options.interface = 'ib0': this machine has no such network interface" in done.output
