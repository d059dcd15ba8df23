"""The block `trainer` of a config, checked: what it holds are arguments of `lightning.Trainer`."""

from __future__ import annotations

import logging
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from espnet3.components.instantiate import as_plain, check_targets, instantiate_block, require
from espnet3.parallel.backends.backend import parameters
from espnet3.parallel.config import check_trainer
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

_TRAINER = "lightning.pytorch.trainer.trainer:Trainer.__init__"
_NUMBERS = {int, float, bool, type(None)}
_GPUS = {"gpu": ("cuda", "mps")}
# made when the training begins: they write files, or change how torch computes from then on
_LATER = ("logger", "callbacks", "profiler", "deterministic", "enable_checkpointing", "enable_progress_bar")


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
    return {str(name): _made(value) for name, value in _checked(block).items()}


def _checked(block: Any) -> dict[str, Any]:
    plain = as_plain(vars(block) if isinstance(block, Namespace) else block)
    if plain is None:
        return {}
    if not isinstance(plain, Mapping):
        such = "{accelerator: cpu, devices: 1}"
        raise ConfigError(f"trainer = {shown(plain)}: must be a mapping, such as {such}")
    check_trainer(plain, parameters(_TRAINER) or ())
    hints = get_type_hints(import_lightning().Trainer.__init__)
    for name, value in plain.items():
        if isinstance(value, str) and _NUMBERS.issuperset(get_args(hints[name]) or [hints[name]]):
            said = "is a text, and lightning.Trainer takes a number or true, false"
            raise _refused(f"{name} = {shown(value)}: {said}")
    return dict(plain)


def _made(value: Any) -> Any:
    if isinstance(value, Mapping) and "_target_" in value:
        return instantiate_block({"of": value}, "of")
    return [_made(each) for each in value] if isinstance(value, list) else value


def check_training(block: Any) -> None:
    """Let Lightning look at a block as on this machine, without loggers and callbacks; a refusal is a ConfigError."""
    plain = _checked(block)
    check_targets(plain)
    options = {name: _made(value) for name, value in plain.items() if name not in _LATER}
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    before = log.level
    log.setLevel(logging.ERROR)  # a training says all this once more
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make_trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, **options)
    finally:
        log.setLevel(before)


def make_trainer(**options: Any) -> Any:
    """Return a `lightning.Trainer`; what it refuses is a ConfigError of one sentence, with the key and its value."""
    lightning = import_lightning()
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    wanted = options.get("accelerator")
    known = lightning.pytorch.accelerators.AcceleratorRegistry
    kinds = [known[name]["accelerator"] for name in _GPUS.get(str(wanted), (wanted,)) if name in known]
    if kinds and not any(kind.is_available() for kind in kinds):
        import torch

        raise _refused(
            f"accelerator = {wanted!r}: this machine has none that torch {torch.__version__} can use; write cpu or "
            "auto, or start the stage where there is one"
        )
    try:
        return lightning.Trainer(**options)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        said = " ".join(str(error).split())
        given = [(sign, name) for sign in ("=", "") for name in options]
        key = next((name for sign, name in given if re.search(rf"\b{name}\b{sign}", said)), None)
        raise _refused(f"{key} = {shown(options[key])}: {said}" if key else said) from error


def _refused(problem: str) -> ConfigError:
    error = ConfigError(f"The trainer config is wrong: {problem}")
    error.problems = (problem,)
    return error
