"""The stage train: it ends in weights, goes on after a kill, and shares its work among processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from toy import config

from espnet3.components.data.dataloader import LengthBatches
from espnet3.components.trainers.checkpoints import CHECKPOINTS, LAST
from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.training import train

# Lightning's advice: about srun, loggers and workers of loaders
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TOY = Path(__file__).with_name("toy.py")
ROOT = TOY.parents[3]


def start(folder: Path, given: dict) -> subprocess.Popen:
    """Start the stage train in a process of its own, with its output in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "training.json"
    path.write_text(json.dumps(given))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TOY.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TOY), str(path)]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def ended(folder: Path, process: subprocess.Popen) -> str:
    """Wait for a process that must end well; return its output."""
    code = process.wait(timeout=600)
    said = (folder / "log.txt").read_text()
    assert code == 0, said
    return said


def weights(path: Path) -> dict:
    """Return the weights in a file, or in a checkpoint, as plain numbers."""
    found = torch.load(path, map_location="cpu", weights_only=True)
    return {
        name.removeprefix("model."): value.tolist() for name, value in found.get("state_dict", found).items()
    }


def test_a_training_ends_in_the_weights_of_its_best_checkpoint(tmp_path) -> None:
    """model.pth has the weights of the checkpoint with the least validation loss; beside it is the mean of the best."""
    path = train(config(tmp_path, max_epochs=5))
    kept = {
        float(each.stem.rpartition("loss")[2]): each
        for each in path.parent.glob(f"{CHECKPOINTS}/epoch*.ckpt")
    }
    assert 1 <= len(kept) <= 3
    assert weights(path) == weights(kept[min(kept)])
    states = [weights(each) for each in kept.values()]
    mean = weights(path.with_name(f"valid.loss.ave_{len(kept)}best.pth"))
    assert set(mean) == set(states[0])
    for name, value in mean.items():
        wanted = torch.tensor([state[name] for state in states]).mean(dim=0)
        assert torch.allclose(torch.tensor(value), wanted), name


def test_each_epoch_is_told_and_written_down(tmp_path, caplog) -> None:
    """A line for each epoch on the terminal, and its figures in epochs.jsonl; the loss falls."""
    caplog.set_level("INFO", "espnet3")
    train(config(tmp_path, max_epochs=4))
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch ")]
    assert [line.split(":")[0] for line in told] == [f"epoch {number} of 4" for number in range(1, 5)]
    epochs = [json.loads(line) for line in (tmp_path / "exp/epochs.jsonl").read_text().splitlines()]
    assert [set(epoch) for epoch in epochs] == [{"epoch", "train/loss", "valid/loss"}] * 4
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2, 3]
    assert epochs[-1]["train/loss"] < epochs[0]["train/loss"]
    assert f"train/loss {epochs[-1]['train/loss']:.4g}, valid/loss" in told[-1]
    page = (tmp_path / "exp/epochs.html").read_text()
    assert page.count("<polyline") == 2 and page.count("<circle") == 8
    assert f"epoch 4: valid/loss {epochs[-1]['valid/loss']:.4g}" in page


def test_threads_are_for_the_stage_alone(tmp_path) -> None:
    """`threads: 1` holds while the model is trained; then torch has as many as before."""
    from toy import Threads

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train({**config(tmp_path, callbacks=[{"_target_": "toy.Threads"}]), "threads": 1})
        assert set(Threads.seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_checkpoint_is_replaced_whole_whatever_disk_temporary_files_are_on(tmp_path) -> None:
    """Where the temporary folder is another file system, the last checkpoint is still no file that is written over.

    A second name of the file keeps the content that it had; a kill at any moment leaves one of the two whole.
    """
    other = Path("/dev/shm")
    assert other.stat().st_dev != tmp_path.stat().st_dev
    given = config(tmp_path, max_epochs=1)
    last = tmp_path / "exp" / CHECKPOINTS / LAST
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(other))
        train(given)
        content = last.read_bytes()
        os.link(last, tmp_path / "second name")
        train(config(tmp_path, max_epochs=2))
    assert last.read_bytes() != content == (tmp_path / "second name").read_bytes()
    assert [path.name for path in last.parent.iterdir() if path.name.startswith(".")] == []


def test_a_training_that_was_killed_ends_as_one_that_was_not(tmp_path) -> None:
    """SIGKILL in the middle of an epoch, the same command again: it goes on from the last epoch, to the same bits."""
    slow = [{"_target_": "toy.Slow"}]
    whole = tmp_path / "whole"
    ended(whole, start(whole, config(whole, max_epochs=6)))

    cut = tmp_path / "cut"
    told = {"_target_": "toy.Told", "folder": str(cut / "told")}
    given = config(cut, max_epochs=6, callbacks=[told, *slow])
    process = start(cut, given)
    until = time.monotonic() + 600
    while not (cut / "told" / "0-of-1-epoch2").exists():
        assert process.poll() is None and time.monotonic() < until, (cut / "log.txt").read_text()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (cut / "exp/model.pth").exists()
    reached = torch.load(cut / "exp" / CHECKPOINTS / LAST, weights_only=False)["epoch"]
    assert reached in (1, 2)

    for file in (cut / "told").iterdir():
        file.unlink()
    ended(cut, start(cut, given))
    assert {each.name for each in (cut / "told").iterdir()} == {
        f"0-of-1-epoch{epoch}" for epoch in range(reached + 1, 6)
    }
    for outcome in (
        lambda exp: weights(exp / "model.pth"),
        lambda exp: (exp / "epochs.jsonl").read_bytes(),
        lambda exp: sorted(each.name for each in (exp / CHECKPOINTS).iterdir()),
    ):
        assert outcome(whole / "exp") == outcome(cut / "exp")


def test_two_processes_share_a_training(tmp_path) -> None:
    """DDP on two processors: both work on every epoch, and only the first goes on with what follows the training."""
    told = {"_target_": "toy.Told", "folder": str(tmp_path / "told")}
    given = config(tmp_path, max_epochs=2, devices=2, strategy="ddp", callbacks=[told])
    said = ended(tmp_path, start(tmp_path, given))
    files = {each.name: each.read_text() for each in (tmp_path / "told").iterdir()}
    assert set(files) == {f"{rank}-of-2-epoch{epoch}" for rank in range(2) for epoch in range(2)}
    assert files["0-of-2-epoch0"] != files["1-of-2-epoch0"]
    assert said.count("the script goes on after the training") == 1
    assert (tmp_path / "exp/model.pth").is_file()


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("batches", [1, 2, 4, 7])
def test_every_process_has_as_many_batches(monkeypatch, batches, processes) -> None:
    """Also where a split has fewer batches than half the processes: no process waits for another's next step."""
    there = torch.distributed
    monkeypatch.setattr(there, "is_initialized", lambda: True)
    monkeypatch.setattr(there, "get_world_size", lambda: processes)
    shares = []
    for rank in range(processes):
        monkeypatch.setattr(there, "get_rank", lambda rank=rank: rank)
        sampler = LengthBatches([1.0] * batches, 1)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
    assert len({len(share) for share in shares}) == 1
    assert {index for share in shares for batch in share for index in batch} == set(range(batches))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_split_without_data_is_said(tmp_path, split) -> None:
    """An empty split is an error that names it; no weights are written."""
    given = config(tmp_path)
    given["dataset"][split][0]["data_src_args"]["count"] = 0
    with pytest.raises(ConfigError, match=f"dataset.{split} has no items"):
        train(given)
    del given["dataset"]["train"]
    with pytest.raises(ConfigError, match="the block 'dataset' has no entries for train"):
        train({**given, "exp_dir": str(tmp_path / "other")})
    assert not list(tmp_path.rglob("model.pth"))


def test_a_loss_that_is_no_number_stops_the_training(tmp_path) -> None:
    """NaN ends the training in its epoch, with the checkpoint of the epoch before kept and no weights written."""
    spoilt = {"_target_": "toy.Spoilt", "epoch": 1}
    with pytest.raises(FloatingPointError, match="epoch 2: train/loss is nan: .*learning rate"):
        train(config(tmp_path, callbacks=[spoilt]))
    kept = torch.load(tmp_path / "exp" / CHECKPOINTS / LAST, weights_only=False)
    assert kept["epoch"] == 0
    assert all(value.isfinite().all() for value in kept["state_dict"].values())
    assert not (tmp_path / "exp/model.pth").exists()


def test_a_plateau_has_something_to_look_at(tmp_path) -> None:
    """ReduceLROnPlateau looks at the loss of validation after each epoch, or at what scheduler_monitor names."""
    block = {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "patience": 0, "threshold": 1e9}
    for number, more in enumerate(({}, {"scheduler_monitor": "train/loss"})):
        given = {**config(tmp_path / str(number)), "scheduler": block, **more}
        assert train(given).is_file()
    kept = torch.load(tmp_path / "0/exp" / CHECKPOINTS / LAST, weights_only=False)
    assert kept["optimizer_states"][0]["param_groups"][0]["lr"] < 0.05


def test_a_training_goes_on_from_the_checkpoint_that_is_named(tmp_path) -> None:
    """fit.ckpt_path takes last and best; what is not there yet, and a file that is cut short, are said by name."""
    given = config(tmp_path, max_epochs=2)
    for name in ("last", "best"):
        with pytest.raises(ConfigError, match=f"fit.ckpt_path = '{name}': .*has no such checkpoint yet"):
            train({**given, "fit": {"ckpt_path": name}})
    train(given)
    for name, epochs in (("last", 3), ("best", 4)):
        train({**config(tmp_path, max_epochs=epochs), "fit": {"ckpt_path": name}})
        assert torch.load(tmp_path / "exp" / CHECKPOINTS / LAST, weights_only=False)["epoch"] == epochs - 1
    last = tmp_path / "exp" / CHECKPOINTS / LAST
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"last\.ckpt cannot be read as a checkpoint"):
        train(config(tmp_path, max_epochs=5))


def test_another_training_in_the_same_folder_is_refused(tmp_path) -> None:
    """A changed model or optimizer is named, instead of going on from what another config has learned."""
    given = config(tmp_path, max_epochs=1)
    train(given)
    changed = {**given, "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}}
    with pytest.raises(ConfigError, match="a training with another optimizer: give this one another exp_tag"):
        train(changed)
    train(config(tmp_path, max_epochs=2))  # how long it lasts is no other training
    assert torch.load(tmp_path / "exp" / CHECKPOINTS / LAST, weights_only=False)["epoch"] == 1


def test_a_checkpoint_of_another_model_is_said(tmp_path) -> None:
    """Where the folder's checkpoint does not fit the model, the error names the file and what to do."""
    given = config(tmp_path, max_epochs=1)
    train(given)
    (tmp_path / "exp/training.yaml").unlink()
    with pytest.raises(ConfigError, match=r"last\.ckpt is not of this model"):
        train({**given, "model": {"_target_": "toy.Line", "inputs": 5}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataloader": {"train": {"batch_size": 0}}}, "dataloader.train.batch_size = 0: must be a positive"),
        ({"dataloader": {"trian": {}}}, "dataloader has the unknown key trian"),
        ({"optimizer": None}, "optimizer"),
        ({"threads": 0}, "threads must be a positive integer, not 0"),
        ({"trainer": {"n_workers": 2}}, "belongs to parallel"),
    ],
)
def test_a_wrong_config_is_said(change, said, tmp_path) -> None:
    """What is wrong with the config of a training is an error with its key, before anything is trained."""
    with pytest.raises(ConfigError, match=said):
        train({**config(tmp_path), **change})
    assert not (tmp_path / "exp" / CHECKPOINTS).exists()
