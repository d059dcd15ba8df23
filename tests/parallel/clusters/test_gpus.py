"""GPUs of this machine: what NVML lists, and what CUDA_VISIBLE_DEVICES leaves of it. No CUDA is executed."""

import re

import pytest

from espnet3.parallel import ConfigError, MissingPackageError
from espnet3.parallel.backends import machine
from espnet3.parallel.backends.loading import pip_line
from espnet3.parallel.backends.machine import Gpu
from espnet3.parallel.clusters.client import gpu_options
from espnet3.parallel.config import ParallelConfig

A, B, C = (Gpu(n, f"GPU-{letter * 8}-0000", f"Card {letter}") for n, letter in enumerate("abc"))
PART = Gpu(2, "MIG-cc01", "Card c MIG 1g.10gb")
ALL = [A, B, C, PART]


@pytest.mark.parametrize(
    ("variable", "left", "end"),
    [
        (None, [A, B, C], ""),
        ("", [], ""),
        (" 2 , 0", [C, A], ""),
        ("1,7,0", [B], "7"),
        ("GPU-b,0", [B, A], ""),
        ("GPU-", [], "GPU-"),
        ("MIG-cc01", [PART], ""),
    ],
)
def test_the_variable_leaves_what_cuda_would_show(variable, left, end):
    """Numbers and beginnings of UUIDs, in the variable's order, up to the first that names no GPU."""
    assert machine.visible_gpus(ALL, variable) == (left, end)


def test_as_many_workers_as_gpus_are_right_and_fewer_are_reported():
    """Nothing is said where each GPU has its worker; GPUs that stay idle are listed."""
    assert machine.check_gpus([A, B], None, 2) == ([A, B], None)
    visible, warning = machine.check_gpus(ALL, "2,0", 1)
    assert visible == [C, A]
    assert warning == f"n_workers = 1 of 2 visible GPUs: {C}; {A}"


@pytest.mark.parametrize(
    ("gpus", "variable", "said"),
    [
        ([], None, "use env: local"),
        ([A, B], None, f"{A}; {B}; set n_workers: 2"),
        (
            [A, B, C],
            "0,9,1",
            f"CUDA_VISIBLE_DEVICES='0,9,1' (which ends for CUDA at '9'): {A}; set n_workers: 1",
        ),
    ],
    ids=["no gpu", "too few", "a wrong one"],
)
def test_more_workers_than_gpus_are_an_error_that_lists_them(gpus, variable, said):
    """The message has the number asked for, the GPUs that are visible, why, and the number that fits."""
    with pytest.raises(ConfigError) as error:
        machine.check_gpus(gpus, variable, 3)
    assert str(error.value).startswith("n_workers = 3")
    assert said in str(error.value)


def test_dask_cuda_is_given_gpus_in_one_way():
    """Numbers where all are whole GPUs; UUIDs where one is a part, as it sorts what it is given."""
    assert machine.devices([C, A]) == ["2", "0"]
    assert machine.devices([A, PART]) == [A.uuid, PART.uuid]


def test_a_worker_sees_its_own_gpu_first():
    """The list is turned by the worker's number, and round again where there are more workers."""
    seen = [machine.gpu_env(["2", "0", "5"], worker)["CUDA_VISIBLE_DEVICES"] for worker in range(4)]
    assert seen == ["2,0,5", "0,5,2", "5,2,0", "2,0,5"]
    assert machine.gpu_env([], 1) == {}


@pytest.mark.parametrize(
    "request_",
    [
        *("--gres gpu:a100:2", "select=1:ncpus=8:ngpus=1", "-l gpu=1", "rusage[ngpus_excl_p=1]"),
        *("request_gpus", "/nodes=1/gpu=2"),
    ],
)
def test_a_request_for_gpus_is_known_in_each_scheduler_s_words(request_):
    """What SLURM, PBS, SGE, LSF, HTCondor and OAR call a GPU is found in a directive; a queue may be called gpu."""
    assert machine.asks_for_gpus(["--exclusive", request_])
    for name in ("--partition=gpu", "-q gpu", "-P gpu_lab", "select=1:ncpus=8", "--mail-type=all"):
        assert not machine.asks_for_gpus([name, None])


def test_a_missing_binding_is_reported_with_its_extra(monkeypatch):
    """Without nvidia-ml-py the message has the pip line."""
    monkeypatch.setattr(machine, "installed", lambda package: package != "pynvml")
    with pytest.raises(MissingPackageError, match=re.escape(pip_line("gpu"))):
        machine.gpus_of_machine()


def test_the_cluster_is_made_with_the_visible_gpus_and_a_dashboard_on_loopback(monkeypatch, caplog):
    """The variable, or the option of its name, chooses; too few workers are reported."""
    monkeypatch.setattr(machine, "gpus_of_machine", lambda: ALL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    made = gpu_options(ParallelConfig.parse({"env": "local_gpu", "n_workers": 2}))
    here = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    here["preload_nanny"] = ["espnet3.parallel.clusters.preload"]
    assert made == {"n_workers": 2, "CUDA_VISIBLE_DEVICES": [2, 0], **here}
    assert not caplog.records
    options = {"CUDA_VISIBLE_DEVICES": [0, 1, 2], "dashboard_address": None}
    made = gpu_options(ParallelConfig.parse({"env": "local_gpu", "n_workers": 2, "options": options}))
    none = {"scheduler_kwargs": {"dashboard": False}}
    assert made == {"n_workers": 2, "CUDA_VISIBLE_DEVICES": [0, 1, 2], **here, **none}
    assert "n_workers = 2 of 3 visible GPUs" in caplog.text
