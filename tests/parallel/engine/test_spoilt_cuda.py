"""Errors after which no CUDA call of a process can succeed: they are told from others, and say so."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, ItemError, parallel_map, set_parallel
from espnet3.parallel.engine.exceptions import spoilt_cuda
from espnet3.parallel.engine.loop import is_too_large
from espnet3.parallel.records import ItemFailure, Policy

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later."


class AcceleratorError(RuntimeError):
    pass


class CudaAPIError(Exception):
    """As numba's is."""


class WordlessError(RuntimeError):
    """Raises where its words are asked for."""

    def __str__(self) -> str:
        raise ValueError("none")


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (AcceleratorError(ECC), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (CudaAPIError("Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS"), True),
        (CudaAPIError("Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDA error: invalid configuration argument"), False),
        (ValueError(ECC), False),
        (WordlessError(), False),
    ],
)
def test_what_spoils_a_process_is_told_from_what_fails_alone(error: Exception, is_one: bool) -> None:
    """A GPU that fell out and a kernel that went wild are; a wrong call, memory, or other words are not."""
    assert bool(spoilt_cuda(error)) is is_one
    if type(error) is not WordlessError:
        assert is_too_large(error, Policy()) is ("memory." in str(error) or "OF_MEMORY" in str(error))


N, BAD = 24, 5
TWO = {"env": "local", "n_workers": 2}
spoilt: list[int] = []  # the items after which each CUDA call of this process fails


class Held:
    """A result on the GPU, fetched when it is sent back: not after a kernel of any item has failed."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        if spoilt:
            raise AcceleratorError(ECC)
        return int, (self.index,)


def fallen_out(index: int) -> int:
    """Return the item, where the GPU is not lost yet; it gets lost at one of them."""
    if index == BAD:
        spoilt.append(index)
    if spoilt:
        raise AcceleratorError(ECC)
    return index


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, object]:
        return {}


class Runner(BaseRunner):
    """Loses its GPU at one item."""

    @staticmethod
    def forward(index: int, **env: object) -> int:
        return fallen_out(index)


class InBatches(Runner):
    """Loses it in the batch of that item."""

    @staticmethod
    def batch_forward(indices: list[int], **env: object) -> list[int]:
        return [fallen_out(index) for index in sorted(indices, key=lambda index: index != BAD)]


class Unnoticed(Runner):
    """Loses it without an error in the item: the next one has it, or the result."""

    @staticmethod
    def forward(index: int, **env: object) -> Any:
        if index != BAD:
            return Held(fallen_out(index))
        spoilt.append(index)
        return Held(index)


class Writes(Runner):
    """Writes what it returns."""

    @staticmethod
    def open_writers(shard_dir: Path, **env: object) -> Any:
        return Path(shard_dir, "out").open("w")

    @staticmethod
    def write_record(writers: Any, result: int, state: object, **env: object) -> None:
        writers.write(f"{result}\n")

    @staticmethod
    def close_writers(writers: Any, state: object, **env: object) -> None:
        writers.close()


@pytest.mark.parametrize(
    ("kind", "options", "deaths"),
    [
        (Runner, {}, 1),
        (Runner, {"max_retries": 1, "seed": 1}, 2),
        (InBatches, {"batch_size": 4}, 2),
        (Unnoticed, {}, 3),
        (Writes, {"output_dir": "run"}, 1),
    ],
)
def test_only_the_item_that_spoils_a_process_is_lost(
    kind: type[Runner], options: dict[str, Any], deaths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends, another one takes the items after it, and the record has the item's own error."""
    monkeypatch.chdir(tmp_path)
    set_parallel(TWO)
    runner = kind(Provider(None), on_error="record", progress=False, **options)
    found = list(runner(range(N)))
    failure = found.pop(BAD)
    if kind is Writes:  # its results are in its files alone
        assert found == [None] * (N - 1)
        found = [int(line) for file in Path("run").glob("split.*/out") for line in file.read_text().split()]
    assert sorted(found) == [*range(BAD), *range(BAD + 1, N)]
    assert isinstance(failure, ItemFailure) and ECC in failure.message
    assert (failure.index, failure.cause) == (BAD, "error")
    assert failure.error_type.endswith("AcceleratorError")
    assert failure.attempts == 1 + options.get("max_retries", 0)
    assert runner.summary is not None and 1 <= runner.summary.deaths <= deaths


@pytest.mark.parametrize("block", [None, TWO], ids=["here", "workers"])
def test_the_error_of_an_item_says_which_gpus_its_process_saw(
    block: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner's error and record have it in their message, `parallel_map`'s own exception in a note."""
    said = r"No CUDA call of this process \(CUDA_VISIBLE_DEVICES=1,0\) can succeed any more"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setattr("tests.parallel.engine.test_spoilt_cuda.spoilt", [])
    set_parallel(block)
    with pytest.raises(ItemError, match=f"uncorrectable ECC error(.|\n)*{said}"):
        Runner(Provider(None), progress=False)(range(N))
    spoilt.clear()
    failures = Runner(Provider(None), progress=False, on_error="record")(range(N))[BAD:]
    assert failures[0].index == BAD and "CUDA_VISIBLE_DEVICES=1,0" in failures[0].message
    # this process cannot be ended
    assert sum(isinstance(each, ItemFailure) for each in failures) == (N - BAD if block is None else 1)
    spoilt.clear()
    with pytest.raises(AcceleratorError) as raised:
        parallel_map(fallen_out, range(N))
    assert str(raised.value) == ECC
    assert "CUDA_VISIBLE_DEVICES=1,0" in "".join(raised.value.__notes__)  # type: ignore[attr-defined]  # 3.11
    spoilt.clear()
