"""The identity of a run, and the parts of it that are shown."""

import json
from argparse import Namespace
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from espnet3.parallel import ChangedRunError
from espnet3.parallel.ledger.identity import changes, hash_indices, identify
from espnet3.parallel.provenance.shown import shown_config
from tests.parallel.ledger.making import OtherRunner, Provider, Runner, identity


def test_a_range_and_the_equal_list_have_the_same_hash() -> None:
    """Ranges, lists and numpy integers that are equal hash the same, and nothing else does."""
    n = 70_000  # more than one chunk
    assert hash_indices(range(n)) == hash_indices(list(range(n))) == hash_indices(list(np.arange(n)))
    assert hash_indices(range(5, 0, -2)) == hash_indices([5, 3, 1])
    lists: list[Any] = [range(n), range(n - 1), range(1, n + 1), [], [0], [0.0], ["0"], [False], [None]]
    lists += [[10**30], [1, 0], [0, 1], ["a", "b"], ["ab"], ["a\nb"], [["a"]], [("a",)]]
    assert len({hash_indices(items) for items in lists}) == len(lists)


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secret names, `oc.env` (also by way of another key) and passwords in addresses never reach a disk."""
    monkeypatch.setenv("LEDGER_TEST_SECRET", "hunter22")
    config = OmegaConf.create(
        {
            "beam": 5,
            "api_key": "abcdef",
            "login": "${oc.env:LEDGER_TEST_SECRET}",
            "inner": {"url": "https://me:${login}@host/x", "copies": ["${login}"]},
            "db": "postgres://me:letmein@host/db",
            "missing": "???",
        }
    )
    text = json.dumps(shown_config(config)) + json.dumps(shown_config({"args": [config, config.login]}))
    for secret in ("abcdef", "hunter22", "letmein"):
        assert secret not in text
    assert '"beam": 5' in text and "oc.env:LEDGER_TEST_SECRET" in text


def test_a_config_that_cannot_be_resolved_is_shown_as_written() -> None:
    """An environment variable that is not set does not stop the run from being described."""
    config = OmegaConf.create({"a": "${oc.env:LEDGER_TEST_NOT_SET}"})
    assert shown_config(config) == {"a": "${oc.env:LEDGER_TEST_NOT_SET}"}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"config": {"beam": 6}}, "config.beam: 5 -> 6"),
        ({"config": {"beam": 5, "x": {"y": 1}}}, "config.x.y: (new) -> 1"),
        ({"config": {}}, "config.beam: 5 -> (gone)"),
        ({"seed": 3}, "seed: None -> 3"),
        ({"items": range(9)}, "indices: 10 indices (0, 1, 2 ... 9) -> 9 indices (0, 1, 2 ... 8)"),
        (
            {"runner": OtherRunner},
            "runner: tests.parallel.ledger.making:Runner -> tests.parallel.ledger.making:OtherRunner",
        ),
    ],
    ids=lambda v: str(v)[:30],
)
def test_each_change_is_said(what: dict[str, Any], said: str) -> None:
    """A difference is one line, "what: old -> new"."""
    old = json.loads(json.dumps(asdict(identity(range(10)))))
    assert changes(old, identity(**{"items": range(10), **what})) == [said]


def test_a_changed_secret_is_said_without_it() -> None:
    """A difference inside a masked value names the value and shows nothing of it."""
    old = asdict(identity([1], config={"a": 1, "password": "one"}))
    assert changes(old, identity([1], config={"a": 1, "password": "two"})) == [
        "config.password: a masked value, the content or the order of its values has changed"
    ]


class Mute:
    def __repr__(self) -> str:
        raise LookupError("no text")


def test_a_config_that_holds_itself_or_has_no_text_is_shown() -> None:
    """A value that contains itself is shown once, an object whose repr raises by its type: neither stops the run."""
    loop: dict[str, Any] = {"beam": 5}
    loop["again"] = [loop]
    assert shown_config(loop) == {"beam": 5, "again": ["(itself)"]}
    twice = [1]
    assert shown_config({"a": twice, "b": twice}) == {"a": [1], "b": [1]}
    assert shown_config({"a": Mute()}) == {"a": "<a value of type Mute; showing it raises LookupError>"}


EXECUTION = {
    "parallel": {"env": "local", "n_workers": 1},
    "runner": {"_target_": "x.Y", "resume": False, "async_mode": False},
    "num_workers": 4,
    "n_workers": 2,
    "prefetch": 2,
    "devices": [0],
    "device": "cuda:0",
    "batch_size": 8,
}


class Settings(dict[str, Any]):
    pass


def as_namespace(values: dict[str, Any]) -> Namespace:
    """Return what a command line's parser gives."""
    return Namespace(**values)


@pytest.mark.parametrize("make", [dict, OmegaConf.create, Settings, OrderedDict, as_namespace])
def test_how_a_run_is_executed_is_not_part_of_it(make: Any) -> None:
    """Settings of where and how a run is executed may change, and be taken out; `run.json` lists them."""
    config = {"beam": 5, "inner": {"deep": [{"parallel": {"env": "slurm"}}]}, **EXECUTION}
    old = json.loads(json.dumps(asdict(identity([1], config={"config": make(config)}))))
    other = {"beam": 5, "inner": {"deep": [{}]}, "parallel": {"env": "slurm", "n_workers": 9}}
    assert changes(old, identity([1], config={"config": make(other)})) == []
    bare = {"beam": 5, "inner": {"deep": [{}]}, "parallel": None}
    assert changes(old, identity([1], config={"config": make(bare)})) == []
    assert changes(old, identity([1], config={"config": make({**bare, "beam": 6})})) != []
    assert old["not_compared"] == ["config.inner.deep[0].parallel", *(f"config.{name}" for name in EXECUTION)]


@pytest.mark.parametrize("name", ["DEVICE", "device", "cfg", "beam", "Settings.device", "Settings.beam"])
def test_a_modules_device_is_no_part_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and a class's with a device, or a config with a block `parallel`, may differ where a run goes on."""
    monkeypatch.setattr(OtherRunner, "forward", eval(f"lambda idx: {name}", globals()), raising=False)
    both = []
    for value in ("cpu", "cuda:1"):
        known = OmegaConf.create({"parallel": {"env": value}, "beam": 5}) if name == "cfg" else value
        monkeypatch.setitem(globals(), name, known)
        monkeypatch.setattr(Settings, name.rpartition(".")[2], known, raising=False)
        both.append(identify(OtherRunner, Provider, {}, [1]))
    assert bool(changes(asdict(both[0]), both[1])) is name.endswith("beam")


@pytest.mark.parametrize(
    ("name", "one", "other"), [("runner", "a", "b"), ("device", "left", "right"), ("beam", 1, 2)]
)
def test_a_value_that_has_such_a_name_by_chance_counts(name: str, one: Any, other: Any) -> None:
    """A value that is neither a block nor a number of devices or workers is part of the run."""
    old = asdict(identity([1], config={"config": {name: one}}))
    assert changes(old, identity([1], config={"config": {name: other}})) == [
        f"config.config.{name}: {json.dumps(one)} -> {json.dumps(other)}"
    ]


def test_a_batch_size_counts_for_a_runner_that_is_given_lists() -> None:
    """Where `forward` is given lists, another size is another question."""
    one, other = ({"config": {"batch_size": size}} for size in (2, 3))
    old = asdict(identify(Runner, Provider, one, [[1, 2]], lists=True))
    said = changes(old, identify(Runner, Provider, other, [[1, 2]], lists=True))
    assert said == ["config.config.batch_size: 2 -> 3"]


def test_at_most_ten_differences_are_said() -> None:
    """The message counts the others, and says what each kind of caller can do."""
    said = str(ChangedRunError("out", [f"config.a{n}: 1 -> 2" for n in range(14)]))
    assert "config.a9: 1 -> 2" in said and "config.a10" not in said and "... and 4 more" in said
    assert 'resume="force"' in said and "resume=False" in said and "ESPNET3_RESUME=force" in said
