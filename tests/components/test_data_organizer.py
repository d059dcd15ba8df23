"""The datasets of a config: entries, splits, what items go through, and what they are called."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.components.data.data_organizer import (
    CombinedDataset,
    DataOrganizer,
    fingerprint_of,
    indices_of,
    organizer_of,
)
from espnet3.parallel import ConfigError

ROOT = Path(__file__).resolve().parents[2]
WAVES = "tests.components.waves"


def noise(**arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{WAVES}.Noise", "data_src_args": arguments}


class Named(dict[str, Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index if isinstance(index, str) else list(self)[index])


def test_entries_of_a_split_become_one_dataset() -> None:
    """Items of several entries follow each other, and an index behind the last one is an error."""
    train = DataOrganizer(train=[noise(n=2), noise(n=3, first=10)]).train
    assert [train[k]["utt_id"] for k in range(len(train))] == ["u0", "u1", "u10", "u11", "u12"]
    assert list(indices_of(train)) == [0, 1, 2, 3, 4]
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"no item {index} among 5"):
            train[index]


def test_test_sets_have_names_and_missing_splits_are_none() -> None:
    """Each test entry is a dataset of its own; a split without entries is None."""
    organizer = DataOrganizer(test=[{"name": "one", **noise(n=1)}, {"name": "two", **noise(n=2)}])
    assert organizer.test_names == ["one", "two"]
    assert {name: len(each) for name, each in organizer.test.items()} == {"one": 1, "two": 2}
    assert (organizer.train, organizer.valid) == (None, None)


def test_nothing_is_made_before_it_is_used() -> None:
    """A split whose class does not exist does no harm to the others."""
    organizer = DataOrganizer(train=[noise(n=1)], valid=[{"_target_": "no.such.Dataset"}])
    assert organizer.train is not None
    with pytest.raises(ConfigError, match=r"_target_ = 'no\.such\.Dataset': cannot be imported"):
        _ = organizer.valid


def test_an_item_goes_through_transform_and_preprocessor() -> None:
    """The entry's own transform comes first, then the preprocessor of all, or that of the split."""
    upper = {"transform": {"_target_": f"{WAVES}.make_upper"}}
    marked = {"_target_": f"{WAVES}.make_marked"}
    both = DataOrganizer(train=[{**noise(n=3), **upper}], preprocessor={**marked, "mark": "x"}).train
    assert both is not None and both[1]["text"] == "WORD x"
    split = {"train": {"mark": "t"}, "test": {"mark": "e"}, **marked}
    organizer = DataOrganizer(
        train=[noise(n=3)], valid=[noise(n=3)], test=[{"name": "a", **noise(n=3)}], preprocessor=split
    )
    found = [each[1]["text"] for each in (organizer.train, organizer.valid, organizer.test["a"]) if each]
    assert found == ["word t", "word ", "word e"]


def test_items_are_named_by_keys_where_every_part_has_them() -> None:
    """Keys of all parts are the indices; a key twice is an error; parts without keys are counted."""
    both = CombinedDataset([Named(a=1), Named(b=2, c=3)])
    assert list(indices_of(both)) == ["a", "b", "c"]
    assert [both["b"], both[2]] == [2, 3]
    with pytest.raises(ValueError, match="two items have the key 'a'"):
        indices_of(CombinedDataset([Named(a=1), Named(a=2)]))
    mixed = CombinedDataset([Named(a=1), [7]])
    assert list(indices_of(mixed)) == [0, 1]
    with pytest.raises(TypeError, match="named by its position, not by 'a'"):
        mixed["a"]


def test_the_fingerprint_is_that_of_all_parts_or_none() -> None:
    """A whole has a fingerprint only where each part has one, and it changes with any of them."""

    class Printed(list[int]):
        def fingerprint(self) -> str:
            return str(list(self))

    first = fingerprint_of(CombinedDataset([Printed([1]), Printed([2])]))
    assert first != fingerprint_of(CombinedDataset([Printed([1]), Printed([3])]))
    assert fingerprint_of(CombinedDataset([Printed([1]), [2]])) is None


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"train": {"a": 1}}, "dataset.train = .*must be a list of entries"),
        ({"train": [{"data_src_arg": {}}]}, "dataset.train.0.data_src_arg = .*Did you mean 'data_src_args'"),
        ({"valid": [{"split": "x"}]}, "dataset.valid.0.split = 'x': unknown key. Arguments of the dataset"),
        ({"train": [{"data_src": "a/b", "_target_": "c.d"}]}, "both data_src and _target_"),
        ({"test": [noise()]}, "dataset.test.0.name = None: each test set needs a name of its own"),
        ({"test": [{"name": "a/b"}]}, "dataset.test.0.name = 'a/b': must be the name of one folder"),
        ({"test": [{"name": "a"}, {"name": "a"}]}, "dataset.test.1.name = 'a': each test set needs a name"),
        ({"tests": []}, "unknown key tests; it takes train, valid, test"),
    ],
)
def test_a_wrong_entry_is_named(block: Any, said: str) -> None:
    """Whatever is wrong in the block is an error that names the key and says what belongs there."""
    with pytest.raises(ConfigError, match=said):
        organizer_of(OmegaConf.create({"dataset": block}))


def test_a_config_may_name_an_organizer_of_its_own() -> None:
    """A `_target_` in the block makes the organizer, which is given the entries as they are."""
    target = "espnet3.components.data.data_organizer.DataOrganizer"
    config = OmegaConf.create({"n": 2, "dataset": {"_target_": target, "train": [noise(n="${n}")]}})
    organizer = organizer_of(config)
    assert organizer.train is not None and len(organizer.train) == 2


_RECIPE = """
import sys
from pathlib import Path
from espnet3.components.data.data_organizer import DataOrganizer, load_dataset_module

folder = Path(sys.argv[1])
organizer = DataOrganizer(train=[{"data_src_args": {"n": 3}}], recipe_dir=folder / "one")
print(len(organizer.train), load_dataset_module(recipe_dir=folder / "one").__name__)
print(len(DataOrganizer(train=[{"data_src": "my-corpus/asr", "data_src_args": {"n": 4}}]).train))
print(len(DataOrganizer(train=[{"data_src": "egs3.my_corpus.asr.dataset", "data_src_args": {"n": 5}}]).train))
for entry, recipe in (({}, "two"), ({}, "three"), ({"data_src": "no/such"}, "one"), ({"data_src": "json"}, "one")):
    try:
        print(DataOrganizer(train=[entry], recipe_dir=folder / recipe).train)
    except Exception as error:
        print(type(error).__name__, str(error).replace(str(folder), "F"))
"""


def test_entries_name_modules_of_recipes(tmp_path: Path) -> None:
    """Without data_src the recipe's own `dataset` is read; a tag or a dotted path names another; mistakes are said."""
    module = "class Dataset(list):\n    def __init__(self, n=1): super().__init__(range(n))\n"
    for recipe in ("one", "two", "egs3/my_corpus/asr"):
        (tmp_path / recipe / "dataset").mkdir(parents=True)
        (tmp_path / recipe / "dataset/__init__.py").write_text(module)
    done = subprocess.run(
        [sys.executable, "-c", _RECIPE, str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["3 dataset", "4", "5"], done.stderr
    assert lines[3].startswith(
        "ConfigError this process has already imported the package `dataset` of F/one/dataset"
    )
    assert lines[4].startswith("ConfigError F/three/dataset/__init__.py is not there: write it")
    assert lines[5].startswith("ConfigError data_src = 'no/such': no module egs3.no.such.dataset")
    assert lines[6].endswith("has no Dataset: import the dataset's class there under this name")


def test_a_recipe_may_link_to_the_dataset_of_another(tmp_path: Path) -> None:
    """A `dataset` that is a symbolic link is the recipe's own, and not one that was imported before."""
    (tmp_path / "one/dataset").mkdir(parents=True)
    (tmp_path / "one/dataset/__init__.py").write_text("Dataset = list\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/dataset").symlink_to(tmp_path / "one/dataset")
    code = "from espnet3.components.data.data_organizer import load_dataset_module as load; import sys\n"
    code += "print(load(recipe_dir=sys.argv[1]).Dataset)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "two")],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "<class 'list'>\n", done.stderr
