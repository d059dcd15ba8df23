"""A model with its optimizer, in the form that Lightning trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
import torch

from espnet3.components.instantiate import as_plain, instantiate_block


class ESPnetLightningModule(lightning.LightningModule):
    """Trains a model that computes its own loss.

    The model is called with the entries of a batch and returns the loss; or a tuple `(loss, stats, weight)`, of which
    the figures in the dict `stats` are logged as `train/NAME` and `valid/NAME`, as means over `weight` items; or a dict
    with an entry `loss`, whose other entries are logged.

    Args:
        model: A torch module.
        config: The training config: `optimizer`, a block with a `_target_` that is given the parameters; `scheduler`
            (optional), one that is given the optimizer; `scheduler_interval` (optional): "step" (default) or "epoch",
            the default of `ReduceLROnPlateau`; `scheduler_monitor` (optional): what that looks at, "valid/loss".
    """

    def __init__(self, model: torch.nn.Module, config: Any = None) -> None:
        super().__init__()
        self.model = model
        self.config = as_plain(config) or {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.model(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch, and log it."""
        return self._step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Log the loss of a batch."""
        return self._step(batch, "valid")

    def _step(self, batch: Any, mode: str) -> Any:
        if isinstance(batch, (tuple, list)):  # (ids, entries)
            batch = batch[-1]
        loss, stats, weight = _parts(self.model(**batch))
        stats = {"loss": loss.detach(), **stats}
        size = int(weight) if weight is not None else len(next(iter(batch.values())))
        values = {f"{mode}/{name}": value for name, value in stats.items() if value is not None}
        self.log_dict(values, prog_bar=True, on_step=False, on_epoch=True, sync_dist=True, batch_size=size)
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the scheduler where there is one."""
        wanted = [each for each in self.model.parameters() if each.requires_grad]
        optimizer = instantiate_block(self.config, "optimizer", _partial_=True)(wanted)
        if self.config.get("scheduler") is None:
            return optimizer
        block = dict(self.config["scheduler"])
        if block.get("total_steps") == "all":
            block["total_steps"] = int(self.trainer.estimated_stepping_batches)
        scheduler = instantiate_block({"scheduler": block}, "scheduler", _partial_=True)(optimizer)
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        how = {"interval": self.config.get("scheduler_interval") or ("epoch" if plateau else "step")}
        if plateau:
            how["monitor"] = self.config.get("scheduler_monitor") or "valid/loss"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **how}}


def _parts(output: Any) -> tuple[Any, Mapping[str, Any], Any]:
    if isinstance(output, tuple) and len(output) == 3:
        return output
    if isinstance(output, Mapping):
        return output["loss"], {name: value for name, value in output.items() if name != "loss"}, None
    return output, {}, None
