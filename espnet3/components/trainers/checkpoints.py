"""Which checkpoints a training keeps, and the one that it goes on from."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from espnet3.components.data.files import write_atomic
from espnet3.components.instantiate import as_plain
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

LAST = "last.ckpt"
CHECKPOINTS = "checkpoints"
_DEFAULT_CRITERION = (("valid/loss", 3, "min"),)


class WholeCheckpoints(TorchCheckpointIO):
    """Writes each checkpoint beside its place, and renames it.

    Lightning writes to the system's temporary folder. Where that is on another disk, the checkpoint is copied from
    there over the one of before, and a kill in between leaves neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Save a checkpoint; one that goes over the network as Lightning does it."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_atomic(path, partial(torch.save, checkpoint))


def checkpoint_callbacks(exp_dir: Path, criteria: Any = None) -> list[Any]:
    """Return callbacks that keep the last checkpoint and the best ones in `<exp_dir>/checkpoints`."""
    folder = exp_dir / CHECKPOINTS
    plain = as_plain(criteria)
    found = [
        ModelCheckpoint(
            folder,
            filename=f"epoch{{epoch}}_{monitor.replace('/', '.')}{{{monitor}:.4f}}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode,
            save_top_k=count,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        for monitor, count, mode in map(_checked, _DEFAULT_CRITERION if plain is None else plain)
    ]
    # Written at the end of each epoch, after the others and with what they keep: a training that was killed does at
    # most one epoch again, under the same names.
    last = ModelCheckpoint(
        folder, filename="last", save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
    )
    return [*found, last]


def save_whole(strategy: Any) -> None:
    """Let a strategy of Lightning save by `WholeCheckpoints`, unless it has a way of its own."""
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = WholeCheckpoints()


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU; one that cannot be read is a ConfigError."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {' '.join(str(error).split())[:200]}): "
            "name another one in fit.ckpt_path, or remove the file, and the training begins anew"
        ) from error
    return content


def last_checkpoint(exp_dir: Path) -> Path | None:
    """Return the checkpoint that a training goes on from; None: it begins."""
    path = exp_dir / CHECKPOINTS / LAST
    return path if path.is_file() else None


def _checked(criterion: Any) -> tuple[str, int, str]:
    match criterion:
        case [str(monitor), int(count), "min" | "max" as mode]:
            return monitor, count, mode
    raise ConfigError(
        f"best_model_criterion: {shown(criterion)}: must be such as [valid/loss, 3, min]: what is logged, how many "
        "checkpoints to keep, and whether the least or the greatest are best"
    )
