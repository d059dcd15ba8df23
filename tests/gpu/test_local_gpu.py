"""`env: local_gpu` on a stand-in of NVML's library: counts, pinning and errors. No CUDA is executed."""

import json

import pytest

from tests.gpu.machine import CALL, WORK, program
from tests.habits import rows
from tests.parallel.contract.notebooks import notebook

DETACHED = "Runner(Provider(), async_mode=True)(range(4))"


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
            [
                "MIG-00000000-0-stub,MIG-00000000-1-stub",
                "MIG-00000000-1-stub,MIG-00000000-0-stub",
            ],
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
        (None, None, "NVML finds no GPU on this machine"),
        ("0", None, "there are visible: 0: Stub 0 (GPU-00000000-stub); set n_workers: 1"),
        ("0,0", "", "there is none visible with CUDA_VISIBLE_DEVICES=''"),
    ],
    ids=["no driver", "too few", "empty"],
)
@pytest.mark.parametrize("call", rows([CALL, DETACHED], [CALL]), ids=["here", "detached"])
def test_more_workers_than_gpus_are_refused_before_anything_starts(machine, gpus, visible, said, call):
    """Without enough GPUs a run is an error that lists them; a detached one is not submitted."""
    done = machine.run(program({"env": "local_gpu", "n_workers": 2}, call), gpus, visible)
    assert done.returncode == 1
    assert "ConfigError: n_workers = 2" in done.stderr and said in done.stderr
    assert not (machine.folder / "_async_results").exists()


def test_from_stdin(machine):
    """A program that has no file to import again runs as a script does."""
    assert machine.pins(2, "0,0", stdin=True) == ["0,1", "1,0"]


def test_in_a_notebook(machine, monkeypatch):
    """In a kernel, whose main module is no script, workers are pinned as elsewhere."""
    monkeypatch.setattr(
        "tests.parallel.contract.notebooks.clean_environment", lambda: machine.environment("0,0")
    )
    with notebook(machine.folder) as run:
        run(WORK)
        printed = run(
            "N = 2\nset_parallel({'env': 'local_gpu', 'n_workers': N})\n" + CALL,
        )
    assert json.loads(printed) == ["0,1", "1,0"]


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


@pytest.mark.matrix
def test_a_detached_run_takes_every_kind_of_name(machine):
    """Four numbers, UUIDs by the variable, and parts of a GPU: jobs are pinned as a driver's workers are."""
    parts = ["MIG-00000003-0-stub", "MIG-00000003-1-stub"]
    chosen = [(4, [0, 1, 2, 3]), (2, None), (2, parts)]
    call = f"""
for at, (n, gpus) in enumerate({chosen}):
    options = {{}} if gpus is None else {{"CUDA_VISIBLE_DEVICES": gpus}}
    set_parallel({{"env": "local_gpu", "n_workers": n, "options": options}})
    folders = {{"output_dir": f"run{{at}}", "async_mode": True, "async_num_workers": n}}
    run = Runner(Provider(), **folders, progress=False)(range(n))
    run.wait()
    print(json.dumps(sorted({{gpus for _, gpus in run.merge()}})))
"""
    visible = "GPU-00000002,GPU-00000000-stub"
    block = {"env": "local_gpu", "n_workers": 1}
    done = machine.run(program(block, call), "0,0,0,2", visible)
    assert done.returncode == 0, done.stderr
    turns = ["0,1,2,3", "1,2,3,0", "2,3,0,1", "3,0,1,2"]
    pins = [turns, ["0,2", "2,0"], [f"{parts[0]},{parts[1]}", f"{parts[1]},{parts[0]}"]]
    assert [json.loads(line) for line in done.stdout.splitlines()] == pins


def test_an_item_that_lost_its_gpu_says_which_one(machine):
    """Of the worker that an uncorrectable error of its GPU's memory has hit, not of the driver."""
    call = """
def fallen_out(index, gpus):
    time.sleep(0.05)
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
Runner.forward = staticmethod(fallen_out)
found = Runner(Provider(), progress=False, on_error="record")(range(16))
print(json.dumps(sorted({item.message.split("CUDA_VISIBLE_DEVICES=")[1].partition(")")[0] for item in found})))
"""
    done = machine.run(program({"env": "local_gpu", "n_workers": 2}, call), "0,0", "1,0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0,1", "1,0"]


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
