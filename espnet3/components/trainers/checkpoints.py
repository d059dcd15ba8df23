"""The checkpoints and figures that a training keeps of each epoch, and the random numbers of one that goes on."""

from __future__ import annotations

import json
import logging
import math
import pickle
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from espnet3.components.data.dataloader import draw
from espnet3.components.data.files import write_atomic, write_text_atomic
from espnet3.components.instantiate import as_plain
from espnet3.components.trainers.curves import page_of_epochs
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

logger = logging.getLogger(__name__)

LAST = "last.ckpt"
CHECKPOINTS = "checkpoints"
_DEFAULT_CRITERION = (("valid/loss", 3, "min"),)
_LOSS = "train/loss"


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
    plain = as_plain(criteria)
    # Written at the end of each epoch, the last one after the others and with what they keep: a training that was
    # killed does at most one epoch again, under the same names.
    keep = partial(
        ModelCheckpoint, exp_dir / CHECKPOINTS, save_on_train_epoch_end=True, enable_version_counter=False
    )
    found = [
        keep(
            filename=f"epoch{{epoch}}_{monitor.replace('/', '.')}{{{monitor}:.4f}}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode,
            save_top_k=count,
        )
        for monitor, count, mode in map(_checked, _DEFAULT_CRITERION if plain is None else plain)
    ]
    return [*found, keep(filename="last", save_top_k=1)]


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


def mean_of(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of several checkpoints' weights; whole numbers, such as counts of batches, are the last one's."""
    found = dict(states[-1])
    for name, value in found.items():
        if torch.is_tensor(value) and (value.is_floating_point() or value.is_complex()):
            wide = torch.promote_types(value.dtype, torch.float32)  # a sum of halves would lose digits
            found[name] = sum(state[name].to(wide) for state in states).div(len(states)).to(value.dtype)
    return found


def _checked(criterion: Any) -> tuple[str, int, str]:
    match criterion:
        case [str(monitor), int(count), "min" | "max" as mode]:
            return monitor, count, mode
    raise ConfigError(
        f"best_model_criterion: {shown(criterion)}: must be such as [valid/loss, 3, min]: what is logged, how many "
        "checkpoints to keep, and whether the least or the greatest are best"
    )


class EpochSeed(Callback):
    """Seeds `random`, numpy and torch at the beginning of each epoch, from a seed, the epoch and the process.

    So a training that goes on after a kill ends as one that was not cut.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Seed the epoch."""
        seed = draw(self.seed, trainer.current_epoch, trainer.global_rank)
        seed_everything(seed, workers=True, verbose=False)


class EpochLog(Callback):
    """Logs what each epoch has come to, and keeps it in `<exp_dir>/epochs.jsonl`, a line for each epoch.

    `epochs.html` beside it draws the curves so far, for a browser.

    A training that goes on after a kill writes the lines that it would have written without. Epochs are counted from
    0 in the file, as in the names of checkpoints.
    """

    def __init__(self, exp_dir: Path) -> None:
        self.path = exp_dir / "epochs.jsonl"
        self._lines: list[str] = []
        self._begin = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the lines of the epochs that are not done again."""
        there = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        self._lines = there[: trainer.current_epoch]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at the clock."""
        self._begin = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the epoch, and write the file; raise FloatingPointError where the loss is not finite."""
        figures = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        # before the epoch's checkpoint replaces the one of before
        if not math.isfinite(figures.get(_LOSS, 0.0)):
            raise FloatingPointError(
                f"epoch {trainer.current_epoch + 1}: {_LOSS} is {figures[_LOSS]}: the training stops, with the "
                "checkpoint of the epoch before kept. A smaller learning rate, trainer.gradient_clip_val or another "
                "precision may help; trainer.detect_anomaly: true finds the operation"
            )
        if not trainer.is_global_zero:
            return
        # JSON has no NaN
        kept = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        self._lines.append(json.dumps({"epoch": trainer.current_epoch, **kept}))
        write_text_atomic(self.path, "".join(f"{line}\n" for line in self._lines))
        epochs = [json.loads(line) for line in self._lines]
        page = page_of_epochs(epochs, f"Training: {self.path.parent.name}")
        write_text_atomic(self.path.with_suffix(".html"), page)
        last = "" if (trainer.max_epochs or -1) < 0 else f" of {trainer.max_epochs}"
        said = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        seconds = time.perf_counter() - self._begin
        logger.info("epoch %d%s: %s, %.1f s", trainer.current_epoch + 1, last, said, seconds)
