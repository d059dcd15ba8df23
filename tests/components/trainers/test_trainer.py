"""The block `trainer`: all of it reaches Lightning as it is, and what belongs elsewhere is said."""

import subprocess
import sys

import pytest
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import OmegaConf

from espnet3.components.trainers.options import check_training
from espnet3.components.trainers.trainer import ESPnet3LightningTrainer
from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.system import BaseSystem
from espnet3.systems.launch import launch
from tests.docs.test_docs import PAGES, blocks
from tests.spec.documents import TRAINER_BLOCKS

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}

# Lightning's advice: about srun, loggers and workers of loaders
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def without_gpus() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs: there is no device error")


@pytest.mark.parametrize("text", TRAINER_BLOCKS.values(), ids=TRAINER_BLOCKS)
def test_a_printed_block_reaches_lightning(text) -> None:
    """Each printed block comes as far as the devices; on processors it makes so many processes and nodes."""
    without_gpus()
    config = OmegaConf.create(text)
    said = r"accelerator = 'gpu': this machine has none that torch \S+ can use; write cpu or auto, or start"
    with pytest.raises(ConfigError, match=said):
        ESPnet3LightningTrainer(config=config.trainer)
    config.trainer.accelerator = "cpu"
    trainer = ESPnet3LightningTrainer(config=config.trainer).trainer
    assert isinstance(trainer.strategy, DDPStrategy)
    assert trainer.num_devices == config.trainer.devices
    assert trainer.num_nodes == config.trainer.get("num_nodes", 1)


def test_fsdp_is_passed_on() -> None:
    """`strategy: fsdp` reaches Lightning, which asks for the GPUs that it needs."""
    without_gpus()
    with pytest.raises(ConfigError, match=r"fsdp.*GPU"):
        ESPnet3LightningTrainer(config={"accelerator": "cpu", "devices": 2, "strategy": "fsdp"})


def test_every_key_reaches_lightning_as_it_is() -> None:
    """Keys of every kind have the value that the block gives them, and none is added that it has."""
    given = {
        "max_epochs": 7,
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 3,
        "gradient_clip_val": 0.5,
        "check_val_every_n_epoch": 2,
        "limit_train_batches": 0.25,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 11,
    }
    trainer = ESPnet3LightningTrainer(config={"accelerator": "cpu", "devices": 1, **given, **QUIET}).trainer
    found = {name: getattr(trainer, name) for name in given}
    assert found == given


def test_a_target_becomes_an_object(tmp_path) -> None:
    """A strategy and callbacks with `_target_` are made; callbacks are added to the checkpoints of ours."""
    block = {
        "accelerator": "cpu",
        "devices": 2,
        "strategy": {"_target_": "lightning.pytorch.strategies.DDPStrategy", "find_unused_parameters": True},
        "callbacks": [{"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}],
    }
    trainer = ESPnet3LightningTrainer(exp_dir=tmp_path, config=block).trainer
    assert trainer.strategy._ddp_kwargs["find_unused_parameters"] is True
    kinds = [type(each) for each in trainer.callbacks]
    assert LearningRateMonitor in kinds and kinds.count(ModelCheckpoint) == 2
    assert trainer.default_root_dir == str(tmp_path)


@pytest.mark.parametrize("criterion", ["valid/loss", ["valid/loss", 3], ["valid/loss", 3, "least"]])
def test_a_wrong_criterion_is_said(criterion, tmp_path) -> None:
    """A criterion that is no name, number and direction is shown with an example."""
    with pytest.raises(ConfigError, match=r"must be such as \[valid/loss, 3, min\]"):
        ESPnet3LightningTrainer(exp_dir=tmp_path, config=QUIET, best_model_criterion=[criterion])


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"device": 1, "strateg": "ddp", "n_workers": 2}, "The trainer config has 3 problems"),
        (
            {"ddp": True},
            "conf/training.yaml, line 2: trainer.ddp = True: lightning.Trainer has no such argument",
        ),
        ({"gpus": 2}, "trainer.gpus = 2: lightning.Trainer has no such argument"),
        ({"max_epochs": "many"}, "conf/training.yaml, line 2: trainer.max_epochs = 'many': is a text"),
        ({"batch_size": 8}, "trainer.batch_size = 8: lightning.Trainer has no such argument"),
        (
            {"accelerator": "gpu"},
            "conf/training.yaml, line 2: trainer.accelerator = 'gpu': this machine has none",
        ),
        (
            {"strategy": "dpp"},
            "conf/training.yaml, line 2: trainer.strategy = 'dpp': You selected an invalid",
        ),
        ({"accelerator": "cpu", "devices": 0}, "line 3: trainer.devices = 0: "),
    ],
)
@pytest.mark.parametrize("words", [[], ["--dry_run"]])
def test_what_lightning_would_refuse_is_said_before_the_first_stage(
    block, said, words, tmp_path, capsys
) -> None:
    """A dry run and a real one name file and line before statistics are computed."""
    without_gpus()
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf/training.yaml"
    path.write_text("trainer:\n" + "".join(f"  {key}: {value}\n" for key, value in block.items()))
    with pytest.raises(SystemExit):
        launch(BaseSystem, recipe_dir=tmp_path, argv=["--stages", "collect_stats", "train", *words])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "exp").exists()


def test_a_dry_run_shows_what_train_works_with(tmp_path, capsys) -> None:
    """For train these are its devices and its strategy; for statistics, and a train of one's own, the `parallel`."""

    class Own(BaseSystem):
        def train(self) -> None:
            """Train without Lightning."""

    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/training.yaml").write_text(
        'n: 2\ntrainer: {accelerator: cpu, devices: "${n}", num_nodes: 1, strategy: ddp}\n'
        "parallel: {env: local, n_workers: 3}\ndataset: {train: []}\n"
        "model: {_target_: builtins.dict}\noptimizer: {_target_: builtins.dict}\n"
    )
    assert not launch(
        BaseSystem, recipe_dir=tmp_path, argv=["--stages", "collect_stats", "train", "--dry_run"]
    )
    shown = [line.partition("; ")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "parallel: local, 3 workers",
        "trainer: accelerator cpu, devices 2, num_nodes 1, strategy ddp",
    ]
    assert not launch(Own, recipe_dir=tmp_path, argv=["--stages", "train", "--dry_run"])
    assert capsys.readouterr().out.endswith("; parallel: local, 3 workers\n")


def test_the_trainer_blocks_of_the_pages_reach_lightning() -> None:
    """Every `trainer:` block printed on a page is taken by Lightning, on processors."""
    found = [yaml.safe_load("\n".join(block.lines)) for page in PAGES for block in blocks(page, "yaml")]
    printed = [config["trainer"] for config in found if "trainer" in config]
    assert len(printed) >= 2
    for block in printed:
        check_training({**block, "accelerator": "cpu"})


def test_without_lightning_the_extra_is_named() -> None:
    """Where lightning is not installed, the error has the `pip install` line, and no traceback of its import."""
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "from espnet3.components.trainers.trainer import ESPnet3LightningTrainer\n"
        "from espnet3.parallel.errors import MissingPackageError\n"
        "try:\n    ESPnet3LightningTrainer(config={})\n"
        "except MissingPackageError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install it with: pip install" in done.stdout
    assert "[train]'" in done.stdout  # of a checkout: -e '.[train]'


def test_the_modules_can_be_imported_without_torch() -> None:
    """Importing the trainer, the stage train and a system loads neither torch nor lightning."""
    code = (
        "import sys\n"
        "import espnet3.components.trainers.trainer, espnet3.systems.base.training, espnet3.systems.base.system\n"
        "print([name for name in ('torch', 'lightning') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
