"""Lightning's trainer with a recipe's checkpoints; everything of the block `trainer` reaches it as it is."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from espnet3.components.trainers.options import import_lightning, trainer_options
from espnet3.parallel.errors import ConfigError

logger = logging.getLogger(__name__)

_AUTO = "auto"
_NO_NEWS = (  # warnings of Lightning about what is meant to be, or what only it can change
    "Checkpoint directory .* exists and is not empty",  # a training goes on
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


class ESPnet3LightningTrainer:
    """Trains a Lightning module.

    Checkpoints are kept in `<exp_dir>/checkpoints`: the last one, written at the end of each epoch, and the best ones.
    `fit` goes on from the last one, so that a training that was killed does at most one epoch again. Each epoch's
    figures are logged, and kept in `<exp_dir>/epochs.jsonl`.

    Attributes:
        model: The module.
        trainer: The `lightning.Trainer`.

    Args:
        model: The module.
        exp_dir: The experiment's folder; None: where `trainer.default_root_dir` says, without checkpoints of ours.
        config: The block `trainer`: arguments of `lightning.Trainer` (accelerator, devices, num_nodes, strategy,
            precision, ...). Entries with a `_target_` become objects; `callbacks` are added to ours.
        best_model_criterion: `[[name of what is logged, how many to keep, min or max]]`; None: the three of least
            `valid/loss`.
        seed: Makes each epoch's random numbers its own, so that a training that goes on ends as one that was not
            cut; None: as torch has them.

    Raises:
        ConfigError: A key is unknown, belongs to `parallel`, or has a wrong value.
        MissingPackageError: lightning or torch is not installed.
    """

    def __init__(
        self,
        model: Any = None,
        exp_dir: str | Path | None = None,
        config: Any = None,
        best_model_criterion: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        lightning = import_lightning()
        options = trainer_options(config)
        self.model = model
        self.exp_dir = None if exp_dir is None else Path(exp_dir)
        self.best: Any = None
        own = options.pop("callbacks", None) or []
        callbacks = [*own] if isinstance(own, list) else [own]
        if seed is not None:
            from espnet3.components.trainers.seeding import EpochSeed

            callbacks.append(EpochSeed(seed))
        if self.exp_dir is not None:
            from espnet3.components.trainers.epoch_log import EpochLog

            callbacks.append(EpochLog(self.exp_dir))
            options.setdefault("default_root_dir", str(self.exp_dir))
        if self.exp_dir is not None and options.get("enable_checkpointing", True):
            from espnet3.components.trainers.checkpoints import checkpoint_callbacks

            kept = checkpoint_callbacks(self.exp_dir, best_model_criterion)
            self.best = kept[0]
            callbacks += kept
        self.trainer = lightning.Trainer(callbacks=callbacks, **options)
        if self.best is not None:
            from espnet3.components.trainers.checkpoints import save_whole

            save_whole(self.trainer.strategy)

    def fit(self, *args: Any, ckpt_path: str | Path | None = _AUTO, **kwargs: Any) -> None:
        """Train.

        Args:
            *args: Of `lightning.Trainer.fit`, after the model.
            ckpt_path: The checkpoint to go on from; "auto": the last one of `exp_dir`, if any; None: begin anew.
            **kwargs: Of `lightning.Trainer.fit`.

        Raises:
            ConfigError: The checkpoint is not of this model.
        """
        if ckpt_path == _AUTO:
            ckpt_path = self._last()
        if ckpt_path is not None:
            logger.info("training goes on from %s", ckpt_path)
        try:
            with warnings.catch_warnings():
                for said in _NO_NEWS:
                    warnings.filterwarnings("ignore", said)
                self.trainer.fit(self.model, *args, ckpt_path=ckpt_path, **kwargs)
        except RuntimeError as error:
            if ckpt_path is not None and "loading state_dict" in str(error):
                raise ConfigError(
                    f"{ckpt_path} is not of this model: {' '.join(str(error).split())[:300]}; remove its folder, or "
                    "give the experiment another exp_tag"
                ) from error
            raise

    def first_epoch(self, ckpt_path: str | Path | None = _AUTO) -> int:
        """Return the epoch, from 0, that `fit` begins with.

        Args:
            ckpt_path: As of `fit`.
        """
        path = self._last() if ckpt_path == _AUTO else ckpt_path
        if path is None:
            return 0
        import torch

        # our own file, of this folder
        return int(torch.load(path, map_location="cpu", weights_only=True)["epoch"]) + 1

    def validate(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the figures of the validation data; arguments and result of `lightning.Trainer.validate`."""
        return self.trainer.validate(self.model, *args, **kwargs)

    def _last(self) -> Path | None:
        if self.exp_dir is None:
            return None
        from espnet3.components.trainers.checkpoints import last_checkpoint

        return last_checkpoint(self.exp_dir)
