"""The files of a recipe's conf/ folder, one for each part that stages play: a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_EXPERIMENT = {"exp_dir": "${recipe_dir}/exp/${exp_tag}", "data_dir": "${recipe_dir}/data"}
_EXPERIMENT_KEYS = ("exp_tag", "exp_dir")
_EVERYWHERE = frozenset({"recipe_dir", "exp_tag", "exp_dir", "data_dir", "log_dir", "parallel"})


@dataclass(frozen=True, slots=True)
class Role:
    """One config file of a recipe."""

    name: str  # as on the command line (`--training_config`) and of a system (`training_config`)
    files: tuple[str, ...]  # names it may have in conf/; the first is the usual one
    defaults: Mapping[str, str] = field(default_factory=dict)  # where the file does not set them
    takes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> keys that it lacks and gets
    keys: frozenset[str] = _EVERYWHERE  # that stages read, beside keys that only other keys refer to


def _keys(words: str) -> frozenset[str]:
    return _EVERYWHERE | set(words.split())


_TABLE = (
    Role(
        "training",
        ("training.yaml", "train.yaml"),
        defaults={"exp_tag": "${self_name:}", **_EXPERIMENT, "stats_dir": "${recipe_dir}/exp/stats"},
        keys=_keys(
            "create_dataset dataset features input_key model stats_dir collect_stats collect_stats_batch_size trainer "
            "dataloader optimizer scheduler scheduler_interval scheduler_monitor best_model_criterion fit tokenizer "
            "seed threads"
        ),
    ),
    Role(
        "inference",
        ("inference.yaml",),
        defaults={**_EXPERIMENT, "inference_dir": "${exp_dir}/${self_name:}"},
        takes={"training": _EXPERIMENT_KEYS},
        keys=_keys(
            "create_dataset dataset test_sets model inference_dir input_key output_fn output_keys idx_key text_key "
            "model_kwargs evaluate batch_size limit provider runner output_artifacts"
        ),
    ),
    Role(
        "metrics",
        ("metrics.yaml",),
        defaults=_EXPERIMENT,
        takes={"inference": (*_EXPERIMENT_KEYS, "inference_dir", "test_sets"), "training": _EXPERIMENT_KEYS},
        keys=_keys("metrics inference_dir test_sets dataset dataset_artifacts"),
    ),
    Role(
        "demo",
        ("demo.yaml",),
        defaults=_EXPERIMENT,
        takes={"training": _EXPERIMENT_KEYS},
        keys=_keys("model model_kwargs input ui"),
    ),
)

ROLES: Mapping[str, Role] = {role.name: role for role in _TABLE}
"""Every config file that recipes have, by its role."""


def role_of(name: str) -> Role:
    """Return a role of the table, or a plain one for a config that only a system of one's own has."""
    return ROLES.get(name) or Role(name, (f"{name}.yaml",))
