"""An entry of `dataset.train`, `valid` or `test`, and the dataset or builder that it names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from espnet3.components.instantiate import as_plain
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

DATASET, BUILDER = "Dataset", "DatasetBuilder"
_KEYS = ("name", "data_src", "data_src_args", "transform", "_target_")


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One entry of a split."""

    name: str | None = None  # of a test set, and of its folder
    # Where the class `Dataset` is: `corpus/task` for the module `egs3.corpus.task.dataset`, or a dotted module path;
    # None: `dataset` in the recipe's folder.
    data_src: str | None = None
    target: str | None = None  # dotted path of what makes the dataset, in place of `data_src`
    args: Mapping[str, Any] = field(default_factory=dict)  # `data_src_args`
    transform: Mapping[str, Any] | None = None  # a block that makes a function from item to item

    @classmethod
    def read(cls, entry: Any, where: str) -> DatasetEntry:
        """Read an entry as it stands in a config under the key `where`."""
        raw = as_plain(entry)
        if not isinstance(raw, Mapping):
            raise ConfigError(
                f"{where} = {shown(raw)}: must be a mapping such as {{name: test, data_src_args: {{split: test}}}}"
            )
        for key in raw:
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS) or " Arguments of the dataset go into data_src_args"
                raise ConfigError(f"{where}.{key} = {shown(raw[key])}: unknown key.{hint}")
        if raw.get("data_src") and raw.get("_target_"):
            raise ConfigError(f"{where} has both data_src and _target_: leave one out")
        args = raw.get("data_src_args") or {}
        if not isinstance(args, Mapping):
            raise ConfigError(
                f"{where}.data_src_args = {shown(args)}: must be a mapping of arguments to values"
            )
        return cls(
            name=None if raw.get("name") is None else str(raw["name"]),
            data_src=raw.get("data_src"),
            target=raw.get("_target_"),
            args=args,
            transform=raw.get("transform"),
        )


def make_dataset(entry: DatasetEntry, recipe_dir: str | Path | None = None) -> Any:
    """Make the dataset that an entry names."""
    if entry.target is None:
        module = load_dataset_module(entry.data_src, recipe_dir)
        if not hasattr(module, DATASET):
            raise ConfigError(
                f"{module.__file__} has no {DATASET}: import the dataset's class there under this name"
            )
        return getattr(module, DATASET)(**entry.args)
    from hydra.utils import get_object  # 0.1 s, and most entries have no target

    try:
        make = get_object(entry.target)
    except Exception as error:  # hydra wraps whatever the import has raised
        raise ConfigError(f"_target_ {entry.target!r} cannot be imported: {error}") from error
    return make(**entry.args)


def load_dataset_module(data_src: str | None = None, recipe_dir: str | Path | None = None) -> ModuleType:
    """Import the module that holds `Dataset`, and `DatasetBuilder` where there is one.

    The recipe's folder, where `data_src` is None, is added to `sys.path`, and so reaches workers.
    """
    if data_src is not None:
        tag = data_src.strip()
        name = f"egs3.{tag.replace('/', '.').replace('-', '_')}.dataset" if "/" in tag else tag
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"data_src = {data_src!r}: no module {name} ({error})") from error
    folder = Path("." if recipe_dir is None else recipe_dir).resolve()
    if not (folder / "dataset" / "__init__.py").is_file():
        raise ConfigError(
            f"{folder / 'dataset' / '__init__.py'} is not there: write it, with the class {DATASET}, or give the entry "
            "a data_src or a _target_"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = import_module("dataset")
    if Path(module.__file__ or "").resolve().parent != folder / "dataset":
        raise ConfigError(
            f"this process has already imported the package `dataset` of {Path(module.__file__ or '').parent}: run "
            f"the recipe in {folder} in a process of its own, or name it by data_src"
        )
    return module
