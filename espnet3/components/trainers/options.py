"""The block `trainer` of a config, checked: what it holds are arguments of `lightning.Trainer`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from espnet3.components.instantiate import as_plain, instantiate_block, require
from espnet3.parallel.backends.loading import parameters
from espnet3.parallel.config import check_trainer
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

_TRAINER = "lightning.pytorch.trainer.trainer:Trainer.__init__"


def import_lightning() -> Any:
    """Return the package lightning; without it, or torch, the error has the `pip install` line."""
    return require("lightning", "train", "training")


def trainer_options(block: Any) -> dict[str, Any]:
    """Return the arguments for `lightning.Trainer` that a block holds, each as it is.

    Entries with a `_target_` (a strategy, a logger, callbacks in a list) become the objects that they name.

    Args:
        block: The block `trainer`: a mapping, an OmegaConf config whose interpolations are resolved, or None.

    Raises:
        ConfigError: It is no mapping, or a key belongs to `parallel`, or to nothing.
    """
    plain = as_plain(vars(block) if isinstance(block, Namespace) else block)
    if plain is None:
        return {}
    if not isinstance(plain, Mapping):
        raise ConfigError(
            f"trainer = {shown(plain)}: must be a mapping, such as {{accelerator: cpu, devices: 1}}"
        )
    check_trainer(plain)
    known = parameters(_TRAINER)
    if known is None:
        import_lightning()  # which says what is missing
    problems = [
        f"{name} = {shown(value, str(name))}: lightning.Trainer has no such argument.{did_you_mean(name, known or ())}"
        for name, value in plain.items()
        if known is not None and name not in known
    ]
    if problems:
        raise ConfigError("The trainer config is wrong: " + "; ".join(problems))
    return {str(name): _made(value) for name, value in plain.items()}


def _made(value: Any) -> Any:
    if isinstance(value, Mapping) and "_target_" in value:
        return instantiate_block({"of": value}, "of")
    return [_made(each) for each in value] if isinstance(value, list) else value
