"""The files of a recipe's conf/ folder, one for each part that stages play: a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Role:
    """One config file of a recipe.

    Attributes:
        name: What it is called on the command line (`--training_config`) and by a system (`training_config`).
        files: Names it may have in conf/; the first is the usual one.
        defaults: Keys with the values they have where the file does not set them.
        takes: Keys that are taken from another role's config where this one has no value for them: role -> keys.
        keys: What the stages read from it, beside keys that only other keys refer to.
    """

    name: str
    files: tuple[str, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)
    takes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


_EXPERIMENT = {"exp_dir": "${recipe_dir}/exp/${exp_tag}", "data_dir": "${recipe_dir}/data"}
_EXPERIMENT_KEYS = ("exp_tag", "exp_dir")
_EVERYWHERE = {"recipe_dir", "exp_tag", "exp_dir", "data_dir", "parallel"}

_TABLE = (
    Role(
        "training",
        ("training.yaml", "train.yaml"),
        defaults={"exp_tag": "${self_name:}", **_EXPERIMENT, "stats_dir": "${recipe_dir}/exp/stats"},
        keys=frozenset(
            _EVERYWHERE
            | {"create_dataset", "dataset", "features", "input_key", "model", "stats_dir", "collect_stats"}
            | {
                "collect_stats_batch_size",
                "trainer",
                "dataloader",
                "optimizer",
                "scheduler",
                "scheduler_interval",
                "scheduler_monitor",
                "best_model_criterion",
                "fit",
                "tokenizer",
                "seed",
                "threads",
            }
        ),
    ),
    Role(
        "inference",
        ("inference.yaml",),
        defaults={**_EXPERIMENT, "inference_dir": "${exp_dir}/${self_name:}"},
        takes={"training": _EXPERIMENT_KEYS},
        keys=frozenset(
            _EVERYWHERE
            | {"create_dataset", "dataset", "test_sets", "model", "inference_dir", "input_key", "output_fn"}
            | {
                "output_keys",
                "idx_key",
                "text_key",
                "model_kwargs",
                "evaluate",
                "batch_size",
                "limit",
                "provider",
                "runner",
            }
        ),
    ),
    Role(
        "metrics",
        ("metrics.yaml",),
        defaults=_EXPERIMENT,
        takes={
            "inference": (*_EXPERIMENT_KEYS, "inference_dir", "test_sets"),
            "training": _EXPERIMENT_KEYS,
        },
        keys=frozenset(_EVERYWHERE | {"metrics", "inference_dir", "test_sets", "dataset"}),
    ),
    Role(
        "demo",
        ("demo.yaml",),
        defaults=_EXPERIMENT,
        takes={"training": _EXPERIMENT_KEYS},
        keys=frozenset(_EVERYWHERE | {"model", "model_kwargs", "input", "ui"}),
    ),
)

ROLES: Mapping[str, Role] = {role.name: role for role in _TABLE}
"""Every config file that recipes have, by its role."""


def role_of(name: str) -> Role:
    """Return a role of the table, or a plain one for a config that only a system of one's own has."""
    return ROLES.get(name) or Role(name, (f"{name}.yaml",), keys=frozenset(_EVERYWHERE))
