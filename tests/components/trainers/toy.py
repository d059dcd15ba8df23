"""A training of seconds: a linear model on drawn points. Configs name it as toy.*; a script, it is the stage train."""

import json
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch
from lightning import Callback


class Line(torch.nn.Module):
    """Learns the sum of the inputs; with dropout, so that random numbers count."""

    def __init__(self, inputs: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, 1)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x, y):
        loss = ((self.linear(self.dropout(x)).squeeze(1) - y) ** 2).mean()
        return loss, {"loss": loss.detach()}, torch.tensor(len(x))


class Points:
    """Drawn points, the same in every process."""

    def __init__(self, count: int, seed: int) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].sum()}


class Collate:
    def __call__(self, items):
        return {key: torch.stack([item[key] for item in items]) for key in ("x", "y")}


class Told(Callback):
    """Writes a file at the end of each epoch: its name has the process and the epoch; in it, the node of SLURM."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_epoch_end(self, trainer, pl_module):
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{trainer.global_rank}-of-{trainer.world_size}-epoch{trainer.current_epoch}"
        (self.folder / name).write_text(f"{os.getpid()} {os.environ.get('SLURMD_NODENAME', '')}")


class Slow(Callback):
    """Gives a test the time to kill the process in mid-epoch."""

    def on_train_batch_end(self, *args):
        time.sleep(0.02)


class Spoilt(Callback):
    """Makes the weights of an epoch no numbers, as a learning rate that is too high does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_batch_start(self, trainer, pl_module, *args):
        if trainer.current_epoch == self.epoch:
            with torch.no_grad():
                pl_module.model.linear.weight.fill_(float("nan"))


class Threads(Callback):
    """Remembers how many threads torch computes with."""

    seen: ClassVar[list[int]] = []

    def on_train_batch_end(self, *args):
        self.seen.append(torch.get_num_threads())


def config(folder: Path, **trainer):
    settings = {"max_epochs": 3, "accelerator": "cpu", "devices": 1, "logger": False}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False}
    return {
        "exp_dir": str(folder / "exp"),
        "seed": 3,
        "model": {"_target_": "toy.Line"},
        "dataset": {
            "train": [{"_target_": "toy.Points", "data_src_args": {"count": 64, "seed": 1}}],
            "valid": [{"_target_": "toy.Points", "data_src_args": {"count": 16, "seed": 2}}],
        },
        "dataloader": {
            "collate_fn": {"_target_": "toy.Collate"},
            "train": {"batch_size": 8},
            "valid": {"batch_size": 8},
        },
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.05},
        "trainer": settings | trainer,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    from espnet3.systems.base.system import BaseSystem

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    given = json.loads(Path(sys.argv[1]).read_text())
    BaseSystem(training_config=given).run(["train"])
    print("the script goes on after the training")
