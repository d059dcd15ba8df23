"""On real GPUs, by `make test-gpu`; with ESPNET3_TEST_GPU=cpu rehearsed on processors, which says nothing of GPUs."""

import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import set_parallel
from tests.gpu.decoding import (
    Asserts,
    Decode,
    Device,
    Fills,
    Recordings,
    recogniser,
    recordings,
    write_weights,
)

torch = pytest.importorskip("torch", reason="`make test-gpu` installs it")
pytestmark = pytest.mark.gpu

N = 48
REHEARSED = os.environ.get("ESPNET3_TEST_GPU") == "cpu"
DEVICE = "cpu" if REHEARSED else "cuda:0"


@pytest.fixture(scope="module")
def gpus() -> int:
    """Return how many GPUs there are; none is a failure: whoever asks for these tests has one."""
    if REHEARSED:
        return 2
    assert torch.cuda.is_available(), "torch sees no GPU on this machine"
    return int(torch.cuda.device_count())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_weights(tmp_path_factory.mktemp("weights") / "model.pth")


@pytest.fixture(scope="module")
def texts(weights: str) -> list[str]:
    """Return what a plain loop in this process writes."""
    model = recogniser(weights, DEVICE)
    return [model(one) for one in recordings(N)]


def block(workers: int) -> dict[str, Any]:
    return {"env": "local" if REHEARSED else "local_gpu", "n_workers": workers}


def provider(weights: str) -> Recordings:
    return Recordings({"weights": weights, "device": DEVICE, "n": N})


@pytest.mark.parametrize("batch_size", [None, 8])
def test_each_worker_decodes_on_a_gpu_of_its_own(
    batch_size: int | None, gpus: int, weights: str, texts: list[str]
) -> None:
    """The texts are those of a plain loop, and each worker's model is on its first GPU, which is no other's first."""
    set_parallel(block(gpus))
    found = Decode(provider(weights), batch_size=batch_size, progress=False)(range(N))
    assert [one["text"] for one in found] == texts
    assert any(texts), "a model that writes nothing shows nothing"
    assert {one["device"] for one in found} == {DEVICE}
    if not REHEARSED:
        assert len({one["visible"].split(",")[0] for one in found}) == gpus


def test_a_detached_run_decodes_on_gpus(gpus: int, weights: str, texts: list[str], tmp_path: Path) -> None:
    """Jobs of this machine write the same texts, one at a time on a GPU."""
    set_parallel(block(gpus))
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    runner = Decode(provider(weights), **folders, async_mode=True, progress=False)
    run = runner(range(N))
    assert run.wait(600).done
    assert [one["text"] for one in run.merge()] == texts


@pytest.mark.parametrize("batch_size", [None, 8])
def test_an_item_that_makes_cuda_unusable_takes_no_other_with_it(batch_size: int | None, gpus: int) -> None:
    """A device-side assert fails its item alone: a new process takes those after it, and of a batch all others."""
    set_parallel(block(gpus))
    runner = Asserts(Device({"device": DEVICE}), batch_size=batch_size, on_error="record", progress=False)
    for _ in range(2):  # the second run has the workers that the first one leaves
        found = runner(range(N))
        assert [idx for idx, one in enumerate(found) if one != idx] == [5]
        assert found[5].cause == "error" and "device-side assert" in found[5].message


def test_a_batch_that_does_not_fit_is_halved_until_it_does(gpus: int) -> None:
    """Eight do not fit, four neither, two do: all results, and the summary counts the halvings."""
    set_parallel(block(gpus))
    runner = Fills(Device({"device": DEVICE}), batch_size=8, progress=False)
    assert runner(range(40)) == list(range(40))
    assert runner.summary is not None and runner.summary.halved >= 2 and not runner.summary.failed
