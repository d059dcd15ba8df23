"""An epoch's random numbers: its own, so that a training that goes on after a kill ends as one that was not cut."""

from __future__ import annotations

from typing import Any

from lightning import Callback, seed_everything

from espnet3.components.drawing import draw


class EpochSeed(Callback):
    """Seeds `random`, numpy and torch at the beginning of each epoch, from a seed, the epoch and the process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Seed the epoch."""
        seed_everything(
            draw(self.seed, trainer.current_epoch, trainer.global_rank), workers=True, verbose=False
        )
