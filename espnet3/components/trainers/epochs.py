"""An epoch: its own random numbers, and what a person sees of it, on the terminal and in a file."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from lightning import Callback, seed_everything

from espnet3.components.data.dataloader import draw
from espnet3.components.data.files import write_text_atomic

logger = logging.getLogger(__name__)

_LOSS = "train/loss"


class EpochSeed(Callback):
    """Seeds `random`, numpy and torch at the beginning of each epoch, from a seed, the epoch and the process.

    So a training that goes on after a kill ends as one that was not cut.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Seed the epoch."""
        seed_everything(
            draw(self.seed, trainer.current_epoch, trainer.global_rank), workers=True, verbose=False
        )


class EpochLog(Callback):
    """Logs what each epoch has come to, and keeps it in `<exp_dir>/epochs.jsonl`, a line for each epoch.

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
        """Log the epoch, and write the file; a loss that is no finite number is a FloatingPointError."""
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
        last = "" if (trainer.max_epochs or -1) < 0 else f" of {trainer.max_epochs}"
        said = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        seconds = time.perf_counter() - self._begin
        logger.info("epoch %d%s: %s, %.1f s", trainer.current_epoch + 1, last, said, seconds)
