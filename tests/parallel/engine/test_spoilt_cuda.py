"""Errors after which no CUDA call of a process can succeed: they are told from others, and say so."""

from __future__ import annotations

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, ItemError, parallel_map
from espnet3.parallel.engine.exceptions import spoilt_cuda
from espnet3.parallel.records import ItemFailure

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later."


class AcceleratorError(RuntimeError):
    pass


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
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDA error: invalid configuration argument"), False),
        (ValueError(ECC), False),
        (WordlessError(), False),
    ],
)
def test_what_spoils_a_process_is_told_from_what_fails_alone(error: RuntimeError, is_one: bool) -> None:
    """A GPU that fell out and a kernel that went wild are; a wrong call, memory, or other words are not."""
    assert bool(spoilt_cuda(error)) is is_one


def fallen_out(index: int) -> int:
    """Return the item, but for the third."""
    if index == 2:
        raise AcceleratorError(ECC)
    return index


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, object]:
        return {}


class Runner(BaseRunner):
    """Loses its GPU at the third item."""

    @staticmethod
    def forward(index: int, **env: object) -> int:
        return fallen_out(index)


def test_the_error_of_an_item_says_which_gpus_its_process_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner's error and record have it in their message, `parallel_map`'s own exception in a note."""
    said = r"No CUDA call of this process \(CUDA_VISIBLE_DEVICES=1,0\) can succeed any more"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with pytest.raises(ItemError, match=f"uncorrectable ECC error(.|\n)*{said}"):
        Runner(Provider(None), progress=False)(range(4))
    (failure,) = [
        each
        for each in Runner(Provider(None), progress=False, on_error="record")(range(4))
        if isinstance(each, ItemFailure)
    ]
    assert failure.index == 2 and "CUDA_VISIBLE_DEVICES=1,0" in failure.message
    with pytest.raises(AcceleratorError) as raised:
        parallel_map(fallen_out, range(4))
    assert str(raised.value) == ECC
    assert "CUDA_VISIBLE_DEVICES=1,0" in "".join(raised.value.__notes__)  # type: ignore[attr-defined]  # 3.11
