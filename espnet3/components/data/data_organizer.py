"""The datasets of a recipe: `dataset.train`, `valid` and `test` of its configs."""

from __future__ import annotations

import bisect
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from espnet3.components.instantiate import as_plain, instantiate_block, locate
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

SPLITS = ("train", "valid", "test")
ORGANIZER_KEYS = (*SPLITS, "preprocessor", "recipe_dir")
DATASET, BUILDER = "Dataset", "DatasetBuilder"
_ENTRY_KEYS = ("name", "data_src", "data_src_args", "transform", "_target_")
Change = Callable[[Any], Any]


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
            if key not in _ENTRY_KEYS:
                hint = did_you_mean(key, _ENTRY_KEYS) or " Arguments of the dataset go into data_src_args"
                raise ConfigError(f"{where}.{key} = {shown(raw[key])}: unknown key.{hint}")
        if raw.get("data_src") and raw.get("_target_"):
            raise ConfigError(f"{where} has both data_src and _target_: leave one out")
        args = raw.get("data_src_args") or {}
        if not isinstance(args, Mapping):
            raise ConfigError(f"{where}.data_src_args = {shown(args)}: must be a mapping of arguments")
        name = None if raw.get("name") is None else str(raw["name"])
        return cls(name, raw.get("data_src"), raw.get("_target_"), args, raw.get("transform"))


class CombinedDataset:
    """Several datasets one after the other, each item changed by the functions of its part.

    Where every part has `keys()`, the whole has them too, and an item can be had by its key as well as by its position.
    """

    def __init__(self, parts: Sequence[Any], changes: Sequence[Sequence[Change]] = ()) -> None:
        self.parts = list(parts)
        self.changes = list(changes) or [()] * len(self.parts)
        if all(callable(getattr(part, "keys", None)) for part in self.parts) and self.parts:
            self.keys = self._keys  # only where all have them: `indices_of` looks for it

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    @cached_property
    def _part_of(self) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for number, part in enumerate(self.parts):
            for key in indices_of(part):
                if key in found:
                    raise ValueError(
                        f"two items have the key {key!r}: ids must differ over the datasets of a split"
                    )
                found[key] = number
        return found

    def _keys(self) -> Iterator[Any]:
        return iter(self._part_of)

    def __len__(self) -> int:
        return self._ends[-1] if self.parts else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            if not hasattr(self, "keys"):
                raise TypeError(f"an item of these datasets is named by its position, not by {index!r}")
            number = self._part_of[index]
            item = self.parts[number][index]
        else:
            if not 0 <= index < len(self):
                raise IndexError(f"there is no item {index} among {len(self)}")
            number = bisect.bisect_right(self._ends, index)
            item = self.parts[number][index - (self._ends[number - 1] if number else 0)]
        for change in self.changes[number]:
            item = change(item)
        return item

    @property
    def items(self) -> list[Any]:
        """The items as the parts list them, without reading any; AttributeError where a part lists none."""
        return [item for part in self.parts for item in part.items]

    def fingerprint(self) -> str | None:
        """Return a hash of the parts' fingerprints; None where one has none."""
        found = [fingerprint_of(part) for part in self.parts]
        if None in found:
            return None
        return hashlib.sha256("\n".join(map(str, found)).encode()).hexdigest()[:16]


class DataOrganizer:
    """The datasets of a config, each made when it is first used.

    Args:
        train: Entries of the training data (`DatasetEntry`), which become one dataset.
        valid: The same of the validation data.
        test: Entries of the test sets, each with a name of its own.
        preprocessor: A function from item to item, or a block with a `_target_` that makes one, used after each
            entry's `transform`. A block may have the keys `train`, `valid` and `test`, with a block for each split.
        recipe_dir: The recipe's folder, for entries without `data_src`.

    Raises:
        ConfigError: An entry is wrong, or two test sets have the same name.
    """

    def __init__(
        self,
        train: Sequence[Any] | None = None,
        valid: Sequence[Any] | None = None,
        test: Sequence[Any] | None = None,
        preprocessor: Any = None,
        recipe_dir: str | Path | None = None,
    ) -> None:
        self.recipe_dir = recipe_dir
        self.entries = {
            split: _entries(given, split) for split, given in zip(SPLITS, (train, valid, test), strict=True)
        }
        self.preprocessor = as_plain(preprocessor)
        names = [entry.name for entry in self.entries["test"]]
        for at, name in enumerate(names):
            if not name or name in names[:at]:
                raise ConfigError(
                    f"dataset.test.{at}.name = {shown(name)}: each test set needs a name of its own, for its folder"
                )
            folder_name(name, f"dataset.test.{at}.name")

    @cached_property
    def train(self) -> CombinedDataset | None:
        """The training data; None where there is no entry."""
        return self._made(self.entries["train"], "train")

    @cached_property
    def valid(self) -> CombinedDataset | None:
        """The validation data; None where there is no entry."""
        return self._made(self.entries["valid"], "valid")

    @cached_property
    def test(self) -> Mapping[str, Any]:
        """The test sets by their names."""
        return {str(entry.name): self._made([entry], "test") for entry in self.entries["test"]}

    @property
    def test_names(self) -> list[str]:
        """The names of the test sets, without making any."""
        return [str(entry.name) for entry in self.entries["test"]]

    def _made(self, entries: Sequence[DatasetEntry], split: str) -> CombinedDataset | None:
        if not entries:
            return None
        block = self.preprocessor
        if isinstance(block, Mapping) and any(key in block for key in SPLITS):
            shared = {key: value for key, value in block.items() if key not in SPLITS}
            block = None if block.get(split) is None else {**shared, **block[split]}
        last = _changes(block, "preprocessor")
        changes = [[*_changes(entry.transform, "transform"), *last] for entry in entries]
        return CombinedDataset([_dataset(entry, self.recipe_dir) for entry in entries], changes)


def _changes(block: Any, name: str) -> list[Change]:
    if block is None:
        return []
    return [block if callable(block) else instantiate_block({name: block}, name)]


def _dataset(entry: DatasetEntry, recipe_dir: str | Path | None) -> Any:
    if entry.target is not None:
        return locate(entry.target)(**entry.args)
    module = load_dataset_module(entry.data_src, recipe_dir)
    if not hasattr(module, DATASET):
        raise ConfigError(
            f"{module.__file__} has no {DATASET}: import the dataset's class there under this name"
        )
    return getattr(module, DATASET)(**entry.args)


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
    file = (folder / "dataset" / "__init__.py").resolve()  # recipes may link to one another
    if not file.is_file():
        raise ConfigError(
            f"{file} is not there: write it, with the class {DATASET}, or give the entry a data_src or a _target_"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = import_module("dataset")
    if (there := Path(module.__file__ or "").resolve().parent) != file.parent:
        raise ConfigError(
            f"this process has already imported the package `dataset` of {there}: run the recipe in {folder} in a "
            "process of its own, or name it by data_src"
        )
    return module


def folder_name(name: str, where: str) -> str:
    """Return the name of a test set, which is that of a folder."""
    if name in (".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"{where} = {shown(name)}: must be the name of one folder, without '/'")
    return name


def _entries(given: Any, split: str) -> list[DatasetEntry]:
    raw = as_plain(given)
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise ConfigError(
            f"dataset.{split} = {shown(raw)}: must be a list of entries such as - {{data_src_args: {{split: {split}}}}}"
        )
    return [DatasetEntry.read(entry, f"dataset.{split}.{at}") for at, entry in enumerate(raw)]


def is_organized(block: Any) -> bool:
    """Return whether a `dataset` block has splits, rather than naming one dataset by `_target_`."""
    return hasattr(block, "get") and any(block.get(split) is not None for split in SPLITS)


def organizer_of(config: Any) -> DataOrganizer:
    """Return the organizer of a config's block `dataset`, which may name another class by `_target_`."""
    block = dict(as_plain(config.get("dataset")))
    if "_target_" in block:
        return instantiate_block({"dataset": {"_recursive_": False, "_convert_": "all", **block}}, "dataset")  # type: ignore[no-any-return]  # the user's class
    if odd := ", ".join(str(key) for key in block if key not in ORGANIZER_KEYS):
        raise ConfigError(f"dataset has the unknown key {odd}; it takes {', '.join(ORGANIZER_KEYS)}")
    return DataOrganizer(**{"recipe_dir": config.get("recipe_dir"), **block})


def fingerprint_of(dataset: Any) -> str | None:
    """Return `dataset.fingerprint()` where the dataset has that method: a hash of its content."""
    fingerprint = getattr(dataset, "fingerprint", None)
    found = None if fingerprint is None else fingerprint()
    return None if found is None else str(found)


def same_data(dataset: Any, wanted: str | None) -> Any:
    """Return a dataset whose fingerprint is that of the driver's; None wants no comparison."""
    if wanted is not None and (found := fingerprint_of(dataset)) != wanted:
        raise RuntimeError(
            f"the dataset {type(dataset).__name__} has the fingerprint {found} in this process and had {wanted} where "
            "the run was started: the data changed meanwhile, or another folder is mounted here; start the run again, "
            "or make both see the same files"
        )
    return dataset


def indices_of(dataset: Any) -> Sequence[Any]:
    """Return what items of a dataset are called: its `keys()` where it has them, else positions.

    A key stays the same when items are added before it, and is a plain text: no object of the dataset travels.
    """
    keys = getattr(dataset, "keys", None)
    return range(len(dataset)) if keys is None else list(keys())
