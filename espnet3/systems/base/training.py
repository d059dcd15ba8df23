"""The train stage: a model, its data and Lightning."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from espnet3.components.data.data_organizer import organizer_of
from espnet3.components.data.files import write_atomic, write_text_atomic
from espnet3.components.instantiate import as_dict, instantiate_block
from espnet3.components.trainers.options import import_lightning
from espnet3.components.trainers.trainer import ESPnet3LightningTrainer
from espnet3.parallel.checks import Whole, argument
from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.blocks import check_blocks
from espnet3.systems.configs.mistakes import NEEDED, StageConfigError, require

logger = logging.getLogger(__name__)

MODEL_FILE = "model.pth"
_THREADS = Whole(least=1)
_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK")  # of torchrun, and of Lightning's own processes
_DECIDING = ("model", "dataset", "dataloader", "optimizer", "scheduler", "scheduler_interval", "seed")


def train(config: Any) -> Path:
    """Train a model; a training that was cut off goes on from its last checkpoint.

    The config has `model`, `dataset`, `optimizer` and `exp_dir`; the page "All keys of all configs" has the rest.
    `ESPnetLightningModule` says what a model returns, `make_loader` what `dataloader` holds, and
    `ESPnet3LightningTrainer` what `trainer`, `best_model_criterion` and `fit` are for.

    The folder `exp_dir` gets `checkpoints/`, `epochs.jsonl` and its curves, `epochs.html`, Lightning's logs, and
    weights: `model.pth`, those of the best checkpoint, and for each criterion the mean of its best checkpoints, such as
    `valid.loss.ave_3best.pth`.

    Return the file with the weights of the best checkpoint. Something missing or wrong, or an `exp_dir` that holds a
    training of another config, is a ConfigError.
    """
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    require(config, "training", NEEDED["train"])
    check_blocks(config)
    lightning = import_lightning()
    with _threads(config.get("threads")):
        return _train(config, lightning)


def _train(config: DictConfig, lightning: Any) -> Path:
    from espnet3.components.data.dataloader import make_loader
    from espnet3.components.modeling.lightning_module import ESPnetLightningModule

    exp_dir = Path(config.exp_dir)
    seed = int(config.get("seed") or 0)
    _check_same(exp_dir, config)
    lightning.seed_everything(seed, workers=True, verbose=False)
    model = ESPnetLightningModule(instantiate_block(config, "model"), config)
    organizer = organizer_of(config)
    if organizer.train is None:
        raise StageConfigError("training", "dataset", "the block 'dataset' has no entries for train")
    whole = as_dict(config)
    # LengthBatches gives each process its own batches
    block = {"use_distributed_sampler": False, **(whole.get("trainer") or {})}
    criteria = whole.get("best_model_criterion")
    if criteria is None and organizer.valid is None:
        criteria = []  # without validation data only the last checkpoint is kept
    trainer = ESPnet3LightningTrainer(model, exp_dir, block, criteria, seed=seed)
    fit = whole.get("fit") or {}
    epoch = trainer.first_epoch(fit.get("ckpt_path", "auto"))
    loaders = {
        f"{name}_dataloaders": make_loader(dataset, whole.get("dataloader"), split, seed=seed, epoch=epoch)
        for name, split, dataset in (("train", "train", organizer.train), ("val", "valid", organizer.valid))
        if dataset is not None
    }
    trainer.fit(**loaders, **fit)
    if not is_first_process():
        logger.info("the training is done; the other stages are those of the first process")
        sys.exit(0)
    logger.info("the curves of the training are in %s", exp_dir / "epochs.html")
    return _write_weights(trainer, model, exp_dir)


@contextmanager
def _threads(wanted: Any) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(argument("threads", wanted, _THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_same(exp_dir: Path, config: DictConfig) -> None:
    if not is_first_process():
        return
    whole = as_dict(config)
    path = exp_dir / "training.yaml"
    before = as_dict(OmegaConf.load(path)) if path.is_file() else whole
    if changed := [key for key in _DECIDING if before.get(key) != whole.get(key)]:
        raise ConfigError(
            f"{exp_dir} holds a training with another {', '.join(changed)}: give this one another exp_tag, or remove "
            f"that folder; {path} has the values of before"
        )
    write_text_atomic(path, OmegaConf.to_yaml(OmegaConf.create({key: whole.get(key) for key in _DECIDING})))


def _write_weights(trainer: ESPnet3LightningTrainer, model: Any, exp_dir: Path) -> Path:
    import torch

    from espnet3.components.trainers.checkpoints import mean_of, read_checkpoint

    def write(name: str, weights: Mapping[str, Any]) -> Path:
        plain = {name.removeprefix("model."): value for name, value in weights.items()}
        write_atomic(exp_dir / name, lambda file: torch.save(plain, file))
        return exp_dir / name

    for kept in trainer.kept[:-1]:  # the last one keeps the last checkpoint
        name = kept.monitor.replace("/", ".")
        for path in exp_dir.glob(f"{name}.ave_*best.pth"):  # of a training that was shorter
            path.unlink()
        if paths := sorted(kept.best_k_models):
            states = [read_checkpoint(path)["state_dict"] for path in paths]
            write(f"{name}.ave_{len(states)}best.pth", mean_of(states))
    best = trainer.best.best_model_path if trainer.best is not None else ""
    if best:
        logger.info("%s has the weights of %s", MODEL_FILE, best)
    return write(MODEL_FILE, read_checkpoint(best)["state_dict"] if best else model.state_dict())


def is_first_process() -> bool:
    """Return whether this process runs all stages: it was not started for a training alone."""
    if os.environ.get("SLURM_STEP_ID", "").isdigit():  # started by srun: the batch script itself has none
        return os.environ.get("SLURM_PROCID", "0") == "0"
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def started_together() -> str:
    """Return what has started all processes of this program at once, `srun` or `torchrun`; empty: nothing has.

    Lightning's own further processes are none of these: they start where the training begins.
    """
    tasks, world = (int(os.environ.get(name) or 1) for name in ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"))
    if os.environ.get("SLURM_STEP_ID", "").isdigit() and tasks > 1:
        return "srun"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ and world > 1 else ""
