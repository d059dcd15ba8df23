"""The pages that are made of the code: `make pages` writes them into docs/generated, and a test compares them.

`cli.md` holds each verb's `--help`, `api.md` each public name with the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

from click.testing import CliRunner

from espnet3 import parallel
from espnet3.parallel import testing
from espnet3.parallel.ledger import merge
from espnet3.systems.configs.roles import ROLES
from espnet3_parallel.main import main as command

TARGET = Path(__file__).resolve().parents[1] / "docs/generated"
NAME = "espnet3-parallel"
INTRODUCTION = """\
Import them from `espnet3.parallel`, those of `ledger.merge` and `testing` from there. A name that is not here is
no promise. The built site has a page for each module, with all docstrings.
"""
KEYS = """\
*T* is `training.yaml` (or `train.yaml`), *I* `inference.yaml`, *M* `metrics.yaml`, *D* `demo.yaml`. A `_target_` names
a class or function by its import path; the other keys of its block are arguments. The keys of `parallel` are those of
[Configuration](../configuration.md).
"""
NOTE = "<!-- written by `make pages`: change the docstrings, not this file -->"


def cli() -> str:
    """Return the page of the command."""
    runner = CliRunner(env={"COLUMNS": "100"})

    def said(*words: str) -> str:
        done = runner.invoke(command, [*words, "--help"], prog_name=NAME, catch_exceptions=False)
        return f"```text\n{done.stdout.rstrip()}\n```\n"

    parts = [f"# The command `{NAME}`\n", NOTE + "\n", said()]
    for verb in command.list_commands(None):  # type: ignore[arg-type]  # which it does not look at
        parts += [f"## {verb}\n", said(verb)]
    return "\n".join(parts)


def modules() -> dict[str, tuple[ModuleType, list[str]]]:
    """Return each public module, the package that its names are imported from, and these names."""
    homes = {f"espnet3.parallel.{home}": (parallel, names.split()) for home, names in parallel._HOME.items()}
    beside = {
        merge.__name__: (merge, ["Results"]),
        testing.__name__: (testing, testing.__all__),
    }
    return dict(sorted({**homes, **beside}.items()))


def api() -> str:
    """Return the page of public names."""
    parts = [
        "# Public names\n",
        NOTE + "\n",
        INTRODUCTION,
    ]
    for module, (place, names) in modules().items():
        parts += [f"## {module}\n", "| Name | Is |", "|---|---|"]
        for name in sorted(names):
            first = (inspect.getdoc(getattr(place, name)) or "").split("\n\n")[0].replace("\n", " ")
            parts.append(f"| `{name}` | {first.replace('|', chr(92) + '|')} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


# What each key of a recipe's configs holds; several of one kind in one row
_KEYS = {
    "recipe_dir": "the recipe's folder; set by `run.py`",
    "data_dir": "`${recipe_dir}/data`",
    "exp_tag": "a name for the experiment: the training config's file name without `.yaml`",
    "exp_dir": "`${recipe_dir}/exp/${exp_tag}`",
    "log_dir": "where `<stage>.log` goes; else the folder that the stage writes to",
    "parallel": "where the stages run, but for `train`",
    "create_dataset": "a [builder](../data.md#builders) by `_target_`, or arguments of the builders of `dataset`",
    "dataset": "[splits](../data.md#splits): `train`, `valid`, `test`, `preprocessor`; or one dataset by `_target_`",
    "model": "`_target_`: a torch module to train; what `infer` calls with `input_key`; what `demo` calls with samples",
    "input_key": "field, or list of fields, that features or model are given",
    "features": "`_target_` of the [features](../feature-statistics.md)",
    "stats_dir": "`${recipe_dir}/exp/stats`",
    "collect_stats": "arguments of that stage's runner: `on_error`, `async_mode`, ...",
    "collect_stats_batch_size": "items for one call of the features",
    "trainer": "all arguments of `lightning.Trainer`: [training](../training.md)",
    "dataloader": "`collate_fn`, and arguments of torch's DataLoader under `train` and `valid`",
    "optimizer scheduler": "`_target_` and arguments; `total_steps: all` is the whole training",
    "scheduler_interval": "`step` or `epoch`",
    "scheduler_monitor": "figure that ReduceLROnPlateau looks at",
    "best_model_criterion": "`[[valid/loss, 3, min]]`: checkpoints to keep",
    "fit": "arguments of Lightning's `fit`: `ckpt_path: best`, or `null` to begin anew",
    "tokenizer": "`text_builder`, `vocab_size`, `save_path`: the SentencePiece model that `train_tokenizer` trains",
    "seed": "0",
    "threads": "that torch computes with while it trains",
    "test_sets": "names of `dataset.test` to decode; of one dataset by `_target_`, name: what differs",
    "inference_dir": "`${exp_dir}/` and the inference config's name",
    "output_fn": "import path of a function from the model's output to a dict",
    "output_keys": "`[hyp, ref]`: one `.scp` file each",
    "idx_key": "`utt_id`: the entry that is an item's id",
    "text_key": "the output that is also written as Kaldi's `text`",
    "model_kwargs": "keywords of each call of the model",
    "evaluate": "`false` leaves a torch module as it is",
    "batch_size": "items for one call of the model",
    "output_artifacts": "by field, how outputs that are no text [are written](../recipes.md#inference)",
    "dataset_artifacts": "the same for fields of the data that metrics read",
    "limit": "only the first so many items of each test set",
    "provider runner": "`_target_` and arguments: `on_error`, `async_mode`, `resume`, ...",
    "metrics": "a list of [metrics](../recipes.md#metrics) by `_target_`",
    "input": "`rate`, `max_seconds`",
    "ui": "`title`, `description`, `host`, `port`",
}


def config_keys() -> str:
    """Return the page of keys: which config has each comes from the table of roles.

    Raises:
        ValueError: The rows above lack a key of a role, or have one too many.
    """
    said = [key for keys in _KEYS for key in keys.split()]
    if wrong := set(said) ^ set().union(*(role.keys for role in ROLES.values())):
        raise ValueError(f"_KEYS and the table of roles differ in {sorted(wrong)}")
    parts = ["# All keys of all configs\n", NOTE + "\n", KEYS, "| Key | In | Value |", "|---|---|---|"]
    for keys, value in _KEYS.items():
        first, *_ = names = keys.split()
        found = [role for role in ROLES.values() if first in role.keys]
        where = "all" if len(found) == len(ROLES) else ", ".join(role.name[0].upper() for role in found)
        parts.append(f"| {', '.join(f'`{name}`' for name in names)} | {where} | {value} |")
    return "\n".join(parts) + "\n"


PAGES = {"cli.md": cli, "api.md": api, "config-keys.md": config_keys}


def main() -> None:
    """Write all pages into docs/generated, or into the folder that is given."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (target / name).write_text(made(), encoding="utf-8")
        print(f"wrote {target / name}")


if __name__ == "__main__":
    main()
