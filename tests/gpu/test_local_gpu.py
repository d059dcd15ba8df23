"""`env: local_gpu` on a stand-in of NVML's library, which has as many GPUs as a test wants: no CUDA is executed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import json, os, sys, time
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def build_worker_setup_fn(self):
        return self.build_env_local

class Runner(BaseRunner):
    @staticmethod
    def forward(index, gpus):
        time.sleep(0.05)
        return [os.getpid(), gpus]
"""

CALL = """
found = Runner(Provider(), progress=False)(range(N * 8))
print(json.dumps(sorted({gpus for _, gpus in found})))
"""


class Machine:
    """Runs programs as if this machine had GPUs."""

    def __init__(self, nvml: Path, folder: Path) -> None:
        self.nvml = nvml
        self.folder = folder

    def run(
        self, text: str, gpus: str | None, visible: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a script without a main guard; `gpus` is NVML_STUB, `visible` CUDA_VISIBLE_DEVICES."""
        script = self.folder / "script.py"
        script.write_text(text)
        given = {"NVML_STUB": gpus, "CUDA_VISIBLE_DEVICES": visible}
        env = {name: value for name, value in os.environ.items() if name not in given}
        env |= {name: value for name, value in given.items() if value is not None}
        return subprocess.run(
            [sys.executable, str(script)],
            cwd=self.folder,
            env={**env, "LD_LIBRARY_PATH": str(self.nvml)},
            capture_output=True,
            text=True,
            timeout=600,  # a busy machine
            check=False,
        )

    def pins(self, n_workers: int, gpus: str | None, visible: str | None = None) -> list[str]:
        """Return the values of CUDA_VISIBLE_DEVICES that the workers of a run saw."""
        block = {"env": "local_gpu", "n_workers": n_workers}
        done = self.run(program(block, CALL), gpus, visible)
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout)
        return found


def program(block: dict[str, object], call: str) -> str:
    """Return a script that registers a block and then does what `call` says."""
    return f"{WORK}\nN = {block['n_workers']}\nset_parallel({block!r})\n{call}"


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """Return the folder of the stand-in, compiled once."""
    folder = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", folder / "libnvidia-ml.so.1"]
    subprocess.run([*command, Path(__file__).with_name("nvml_stub.c")], check=True)
    return folder


@pytest.fixture
def machine(nvml, tmp_path):
    return Machine(nvml, tmp_path)


@pytest.mark.parametrize(
    ("n_workers", "gpus", "visible", "pins"),
    [
        (4, "0,0,0,0", None, ["0,1,2,3", "1,2,3,0", "2,3,0,1", "3,0,1,2"]),
        (1, "0,0", None, ["0,1"]),
        (2, "0,0", "GPU-00000001,GPU-00000000-stub", ["0,1", "1,0"]),
        (
            2,
            "2",
            "MIG-00000000-0-stub,MIG-00000000-1-stub",
            ["MIG-00000000-0-stub,MIG-00000000-1-stub", "MIG-00000000-1-stub,MIG-00000000-0-stub"],
        ),
    ],
    ids=["four", "one of two", "by uuid", "parts"],
)
def test_each_worker_has_a_gpu_of_its_own_as_its_first(machine, n_workers, gpus, visible, pins):
    """In a script without a main guard, `cuda:0` is another GPU in each worker, and the others stay visible."""
    assert machine.pins(n_workers, gpus, visible) == pins


@pytest.mark.parametrize(
    ("gpus", "visible", "said"),
    [
        (None, None, "NVML (see nvidia-smi) finds: none"),
        ("0", None, "visible are: 0: Stub 0 (GPU-00000000-stub). NVML"),
        ("0,0", "", "visible with CUDA_VISIBLE_DEVICES='' are: none"),
    ],
    ids=["no driver", "too few", "empty"],
)
def test_more_workers_than_gpus_are_refused_before_anything_starts(machine, gpus, visible, said):
    """Without enough GPUs a run is an error that lists them."""
    done = machine.run(program({"env": "local_gpu", "n_workers": 2}, CALL), gpus, visible)
    assert done.returncode == 1
    assert "ConfigError: n_workers = 2" in done.stderr and said in done.stderr


def test_a_replaced_worker_keeps_its_gpu(machine):
    """A worker that takes the place of one that died is pinned to the same GPU."""
    call = """
Runner.forward = staticmethod(lambda index, gpus: os.kill(os.getpid(), 9) if first(index) else [os.getpid(), gpus])
def first(index):
    try:
        return index == 3 and not os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
found = [item for _ in range(6) for item in Runner(Provider(), progress=False)(range(16))]
print(json.dumps(sorted({gpus for _, gpus in found})))
"""
    done = machine.run(program({"env": "local_gpu", "n_workers": 2}, call), "0,0")
    assert done.returncode == 0, done.stderr
    assert (machine.folder / "killed").exists()
    assert json.loads(done.stdout) in (["0,1", "1,0"], ["0,1"], ["1,0"])


def test_a_detached_run_pins_its_jobs_as_a_driver_does(machine):
    """Two jobs at a time see two GPUs in two orders, by the option of the variable's name too."""
    call = """
run = Runner(Provider(), output_dir="run", async_mode=True, async_num_workers=2, progress=False)(range(16))
run.wait()
print(json.dumps(sorted({gpus for _, gpus in run.merge()})))
"""
    block = {"env": "local_gpu", "n_workers": 2, "options": {"CUDA_VISIBLE_DEVICES": [2, 0]}}
    done = machine.run(program(block, call), "0,0,0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0,2", "2,0"]


def test_an_item_that_lost_its_gpu_says_which_one_and_is_the_only_one_lost(machine):
    """Attended and detached: the worker's GPUs are named, not the driver's, and all items after it have results."""
    call = """
class Loses(Runner):
    spoilt = []
    @staticmethod
    def forward(index, gpus):
        if index == 3:
            Loses.spoilt.append(index)
        if Loses.spoilt:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return index
options = {"on_error": "record", "progress": False}
found = Loses(Provider(), **options)(range(16))
run = Loses(Provider(), output_dir="run", async_mode=True, async_num_workers=1, **options)(range(16))
run.wait()
for results in found, run.merge():
    lost = [item for item in results if not isinstance(item, int)]
    print(json.dumps([item.message.split("CUDA_VISIBLE_DEVICES=")[1].partition(")")[0] for item in lost]))
"""
    done = machine.run(program({"env": "local_gpu", "n_workers": 2}, call), "0,0", "1,0")
    assert done.returncode == 0, done.stderr
    attended, detached = map(json.loads, done.stdout.splitlines())
    assert [*attended, *detached] in (["1,0", "1,0"], ["0,1", "1,0"], ["1,0", "0,1"], ["0,1", "0,1"])


def test_an_option_of_dask_cuda_is_the_only_reason_to_need_it(machine):
    """Without dask-cuda a block runs, until it asks for what only dask-cuda can give."""
    hidden = "import sys; sys.modules['dask_cuda'] = None\n"
    block = {"env": "local_gpu", "n_workers": 2, "options": {"threads_per_worker": 1}}
    done = machine.run(hidden + program(block, CALL), "0,0")
    assert done.returncode == 0, done.stderr
    block["options"] = {"rmm_pool_size": "1GB"}
    done = machine.run(hidden + program(block, CALL), "0,0")
    assert done.returncode == 1
    assert "MissingPackageError" in done.stderr and "dask_cuda" in done.stderr
