"""Batches for a training: recordings of like length together, in an order that seed and epoch decide."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import torch.distributed
from torch.utils.data import DataLoader, Sampler

from espnet3.components.instantiate import as_plain, instantiate_block
from espnet3.parallel.errors import ConfigError

_OWN = ("collate_fn", "train", "valid")


class LengthBatches(Sampler[list[int]]):
    """Batches of items of like length, shuffled in an order of each epoch's own.

    With several processes each has every so many-th batch, and all have equally many: batches are taken again from the
    first where they do not come out even. The loader begins with `epoch`, before Lightning says which one it is.
    """

    def __init__(
        self,
        lengths: Sequence[float],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        order = list(range(len(lengths)))
        if shuffle:
            order.sort(key=lambda index: lengths[index])
        self.batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        self.shuffle = shuffle
        self.seed = seed
        self.generator = torch.Generator()
        self.set_epoch(epoch)

    @property
    def sampler(self) -> LengthBatches:
        """Itself: where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes; Lightning does."""
        self.epoch = epoch
        # the loader seeds its own processes from this generator
        self.generator.manual_seed(draw(self.seed, epoch))

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / _processes()[1])

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(self.batches)
        if self.shuffle:
            random.Random(f"{self.seed} {self.epoch}").shuffle(batches)  # noqa: S311  # an order, no secret
        rank, processes = _processes()
        return islice(cycle(batches), rank, len(self) * processes, processes)


def make_loader(dataset: Any, config: Any, split: str, *, seed: int = 0, epoch: int = 0) -> Any:
    """Return the loader of a split, `train` or `valid`, with an order that seed and epoch decide.

    `config` is the block `dataloader`: `collate_fn`, a block with a `_target_`; `train` and `valid`, each with
    `batch_size`, `shuffle` (train: true, valid: false) and further arguments of torch's `DataLoader`. Where the dataset
    lists `items` with `seconds`, batches hold items of like length.
    """
    block = dict(as_plain(config) or {})
    if odd := [str(key) for key in block if key not in _OWN]:
        raise ConfigError(f"dataloader has the unknown key {', '.join(odd)}; it takes {', '.join(_OWN)}")
    options = dict(block.get(split) or {})
    size = options.pop("batch_size", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"dataloader.{split}.batch_size = {size!r}: must be a positive whole number")
    shuffle = options.pop("shuffle", split == "train")
    if isinstance(block.get("collate_fn"), Mapping):
        options["collate_fn"] = instantiate_block(block, "collate_fn")
    if not len(dataset):
        raise ConfigError(f"dataset.{split} has no items: its entries are there, and their data is empty")
    batches = LengthBatches(_lengths(dataset), size, shuffle=shuffle, seed=seed, epoch=epoch)
    return DataLoader(dataset, batch_sampler=batches, generator=batches.generator, **options)


def draw(*numbers: int) -> int:
    """Return a seed made of numbers: another one for each choice of them, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")


def _lengths(dataset: Any) -> list[float]:
    items = getattr(dataset, "items", [None] * len(dataset))  # some list nothing without reading it
    return [float(getattr(item, "seconds", None) or 0.0) for item in items]


def _processes() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
