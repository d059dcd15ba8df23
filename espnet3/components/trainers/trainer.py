"""Lightning's trainer with a recipe's checkpoints; everything of the block `trainer` reaches it as it is."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from espnet3.components.trainers.options import import_lightning, make_trainer, trainer_options
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
        kept: The callbacks that keep checkpoints, one for each criterion, and at the end that of the last checkpoint.

    Args:
        model: The module.
        exp_dir: The experiment's folder; None: where `trainer.default_root_dir` says, without checkpoints of ours.
        config: The block `trainer`: arguments of `lightning.Trainer` (accelerator, devices, num_nodes, strategy,
            precision, ...). Entries with a `_target_` become objects; `callbacks` are added to ours.
        best_model_criterion: `[[name of what is logged, how many to keep, min or max]]`; None: the three of least
            `valid/loss`.
        seed: Makes each epoch's random numbers its own, so that a training that goes on ends as one that was not
            cut; None: as torch has them.

    A key that is unknown, belongs to `parallel` or has a wrong value is a ConfigError; without lightning and torch
    there is a MissingPackageError.
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
        import_lightning()
        options = trainer_options(config)
        self.model = model
        self.exp_dir = None if exp_dir is None else Path(exp_dir)
        self.kept: list[Any] = []
        from espnet3.components.trainers import checkpoints  # here: it imports lightning

        self._checkpoints = checkpoints
        own = options.pop("callbacks", None) or []
        callbacks = [*own] if isinstance(own, list) else [own]
        if seed is not None:
            callbacks.append(checkpoints.EpochSeed(seed))
        if self.exp_dir is not None:
            callbacks.append(checkpoints.EpochLog(self.exp_dir))
            options.setdefault("default_root_dir", str(self.exp_dir))
        if self.exp_dir is not None and options.get("enable_checkpointing", True):
            self.kept = checkpoints.checkpoint_callbacks(self.exp_dir, best_model_criterion)
            callbacks += self.kept
        self.best = self.kept[0] if self.kept else None
        self.trainer = make_trainer(callbacks=callbacks, **options)
        if self.best is not None:
            checkpoints.save_whole(self.trainer.strategy)

    def fit(self, *args: Any, ckpt_path: str | Path | None = _AUTO, **kwargs: Any) -> None:
        """Train, with the arguments of `lightning.Trainer.fit` after the model.

        `ckpt_path` is the checkpoint to go on from: a path, "last" or "best" of `exp_dir`; "auto": the last one, if
        any; None: begin anew. One that is not there, or of another model, is a ConfigError.
        """
        ckpt_path = self._checkpoint(ckpt_path)
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
        """Return the epoch, from 0, that `fit` begins with."""
        path = self._checkpoint(ckpt_path)
        return 0 if path is None else int(self._checkpoints.read_checkpoint(path)["epoch"]) + 1

    def validate(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the figures of the validation data; arguments and result of `lightning.Trainer.validate`."""
        return self.trainer.validate(self.model, *args, **kwargs)

    def _checkpoint(self, wanted: str | Path | None) -> str | Path | None:
        if wanted not in (_AUTO, "last", "best"):
            return wanted
        checkpoints = self._checkpoints
        last = None if self.exp_dir is None else self.exp_dir / checkpoints.CHECKPOINTS / checkpoints.LAST
        found: str | Path | None = last if last is not None and last.is_file() else None
        if wanted == "best" and found is not None and self.best is not None:
            of_best = checkpoints.read_checkpoint(found)["callbacks"].get(self.best.state_key, {})
            found = of_best.get("best_model_path")
        if not found and wanted != _AUTO:
            raise ConfigError(
                f"fit.ckpt_path = {wanted!r}: {self.exp_dir} has no such checkpoint yet. Leave fit.ckpt_path out: a "
                "training that was cut off goes on from its last checkpoint by itself"
            )
        return found or None
