"""Which checkpoints a training keeps, and the one that it goes on from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

from espnet3.components.instantiate import as_plain
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

LAST = "last.ckpt"
CHECKPOINTS = "checkpoints"
DEFAULT_CRITERION = (("valid/loss", 3, "min"),)


def checkpoint_callbacks(exp_dir: Path, criteria: Any = None) -> list[Any]:
    """Return callbacks that keep the last checkpoint and the best ones in `<exp_dir>/checkpoints`.

    Args:
        exp_dir: The experiment's folder.
        criteria: `[[name of what is logged, how many, min or max]]`; None: the three of least `valid/loss`.

    Raises:
        ConfigError: A criterion is something else.
    """
    folder = exp_dir / CHECKPOINTS
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
        for monitor, count, mode in map(_checked, _listed(criteria))
    ]
    # Written at the end of each epoch, after the others and with what they keep: a training that was killed does at
    # most one epoch again, under the same names.
    last = ModelCheckpoint(
        folder, filename="last", save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
    )
    return [*found, last]


def last_checkpoint(exp_dir: Path) -> Path | None:
    """Return the checkpoint that a training goes on from; None: it begins."""
    path = exp_dir / CHECKPOINTS / LAST
    return path if path.is_file() else None


def _listed(criteria: Any) -> Iterable[Any]:
    plain = as_plain(criteria)
    return DEFAULT_CRITERION if plain is None else plain


def _checked(criterion: Any) -> tuple[str, int, str]:
    match criterion:
        case [str(monitor), int(count), "min" | "max" as mode]:
            return monitor, count, mode
    raise ConfigError(
        f"best_model_criterion: {shown(criterion)}: must be such as [valid/loss, 3, min]: what is logged, how many "
        "checkpoints to keep, and whether the least or the greatest are best"
    )
