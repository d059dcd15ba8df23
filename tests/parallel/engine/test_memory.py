"""Batches that do not fit into memory: halved, and not tried again at the size that did not fit."""

import pytest

from espnet3.parallel.engine.loop import Call, Loop, is_too_large, run_items
from espnet3.parallel.records import ItemFailure, Policy


class OutOfMemoryError(RuntimeError):
    """As torch's, which is known by its name."""


class Gpu:
    """Room for some units at once; each item takes as many as its number says, or one."""

    def __init__(self, room: int, sizes: dict[int, int] | None = None) -> None:
        self.room = room
        self.sizes = sizes or {}
        self.batches: list[int] = []

    def many(self, items: list[int]) -> list[int]:
        self.batches.append(len(items))
        if sum(self.sizes.get(item, 1) for item in items) > self.room:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [item * 10 for item in items]

    def call(self) -> Call:
        return Call(lambda item: self.many([item])[0], self.many)


def batches(size: int, **policy: object) -> Policy:
    return Policy(batch_size=size, **policy)  # type: ignore[arg-type]  # what a test varies


def test_a_batch_that_does_not_fit_is_halved_and_the_size_that_fits_is_kept() -> None:
    """One batch of 16 fails for room for 5, then 8, and from there on all are of 4; no result is lost."""
    gpu = Gpu(5)
    block = run_items(Loop(range(64), gpu.call(), batches(16), "w"))
    assert block.values == [item * 10 for item in range(64)]
    assert block.halved == 2 and not block.retries and not block.failed
    assert gpu.batches == [16, 8, *[4] * 16]


def test_an_item_that_fits_with_no_other_fails_alone_and_does_not_make_all_batches_small() -> None:
    """An item too large for the room fails with its own error, its neighbours do not, and batches stay as they fit."""
    gpu = Gpu(8, {5: 99})
    block = run_items(Loop(range(32), gpu.call(), batches(8, on_error="record"), "w"))
    assert block.failed == [5]
    failure = block.values[5]
    assert isinstance(failure, ItemFailure) and failure.index == 5 and "out of memory" in failure.message
    assert [value for at, value in enumerate(block.values) if at != 5] == [
        i * 10 for i in range(32) if i != 5
    ]
    assert gpu.batches[-1] == 4


def test_another_error_in_a_half_is_its_item_s_alone() -> None:
    """In a half that fits, an item that raises for another reason fails, and the rest of the batch goes on."""
    gpu = Gpu(4)

    def many(items: list[int]) -> list[int]:
        results = gpu.many(items)
        if 6 in items:
            raise ValueError(6)
        return results

    call = Call(lambda item: many([item])[0], many)
    block = run_items(Loop(range(16), call, batches(8, on_error="record"), "w"))
    assert block.failed == [6] and block.values[6].error_type == "ValueError"
    assert [value for at, value in enumerate(block.values) if at != 6] == [
        i * 10 for i in range(16) if i != 6
    ]


def test_a_runner_may_forbid_it() -> None:
    """Without splitting, a batch that does not fit goes item by item, as any batch that raises, and the size stays."""
    gpu = Gpu(4)
    block = run_items(Loop(range(16), gpu.call(), batches(8, split_batches=False), "w"))
    assert block.values == [item * 10 for item in range(16)]
    assert not block.halved and gpu.batches.count(8) == 2


def test_what_the_failed_batch_held_is_free_when_the_half_is_tried() -> None:
    """A frame of the batch that raised keeps nothing alive: its memory is what the half needs."""
    import weakref

    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []

    def many(items: list[int]) -> list[int]:
        assert all(each() is None for each in held)
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        if len(items) > 2:
            raise OutOfMemoryError("CUDA out of memory")
        return items

    assert run_items(Loop(range(8), Call(lambda item: item, many), batches(8), "w")).values == list(range(8))
    assert len(held) == 6  # 8, 4, and four of 2


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_was_not_enough(error: BaseException, is_one: bool) -> None:
    """Python's, torch's new and old errors are known; a sentence in any other exception says nothing."""
    assert is_too_large(error, Policy()) is is_one
