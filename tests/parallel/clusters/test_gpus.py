"""GPUs of this machine: what NVML lists, and what CUDA_VISIBLE_DEVICES leaves of it. No CUDA is executed."""

import re

import pytest

from espnet3.parallel import MissingPackageError
from espnet3.parallel.backends import machine
from espnet3.parallel.backends.backend import pip_line
from espnet3.parallel.backends.machine import Gpu
from espnet3.parallel.clusters.client import gpu_options
from espnet3.parallel.config import ParallelConfig

A, B, C = (Gpu(n, f"GPU-{letter * 8}-0000", f"Card {letter}") for n, letter in enumerate("abc"))
PART = Gpu(2, "MIG-cc01", "Card c MIG 1g.10gb")
ALL = [A, B, C, PART]


@pytest.mark.parametrize(
    ("variable", "left"),
    [
        (None, [A, B, C]),
        ("", []),
        (" 2 , 0", [C, A]),
        ("1,7,0", [B]),
        ("GPU-b,0", [B, A]),
        ("GPU-", []),
        ("MIG-cc01", [PART]),
    ],
)
def test_the_variable_leaves_what_cuda_would_show(variable, left):
    """Numbers and beginnings of UUIDs, in the variable's order, up to the first that names no GPU."""
    assert machine.visible_gpus(ALL, variable) == left


def test_dask_cuda_is_given_gpus_in_one_way():
    """Numbers where all are whole GPUs; UUIDs where one is a part, as it sorts what it is given."""
    assert machine.devices([C, A]) == ["2", "0"]
    assert machine.devices([A, PART]) == [A.uuid, PART.uuid]


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
    monkeypatch.setattr("espnet3.parallel.backends.backend.installed", lambda package: package != "pynvml")
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
