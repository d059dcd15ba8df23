"""InferenceRunner: dataset item -> model -> output function -> `.scp` files."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.inference_provider import InferenceProvider
from espnet3.systems.base.inference_runner import InferenceRunner, load_function

WORDS = ["zero", "one", "two", "three", "four", "five", "six"]


def upper(text: str) -> Any:
    """Take one text only: a list has no `upper`."""
    return text.upper()


class ListModel:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: Any) -> Any:
        self.calls += 1
        return [one.upper() for one in text] if isinstance(text, list) else text.upper()


def rows(*, data: Any, model_output: Any, idx: Any) -> Any:
    return {"utt_id": data["name"], "hyp": model_output, "ref": data["text"]}


class Provider(InferenceProvider):
    @staticmethod
    def build_dataset(config: Any) -> Any:
        return [{"name": f"utt{k}", "text": word} for k, word in enumerate(WORDS)]

    @staticmethod
    def build_model(config: Any) -> Any:
        return config


def make(model: Callable[..., Any] = upper, params: Any = None, **options: Any) -> InferenceRunner:
    params = {"input_key": "text", "output_fn": rows, **(params or {})}
    return InferenceRunner(Provider(model, params), progress=False, **options)


def test_results_and_files_are_in_index_order(tmp_path: Path) -> None:
    """The list and both files follow the indices as given, here by an iterator, not the dataset."""
    results = make(output_dir=tmp_path)(iter([2, 0, 1]))
    assert [result["hyp"] for result in results] == ["TWO", "ZERO", "ONE"]
    assert (tmp_path / "hyp.scp").read_text() == "utt2 TWO\nutt0 ZERO\nutt1 ONE\n"
    assert (tmp_path / "ref.scp").read_text() == "utt2 two\nutt0 zero\nutt1 one\n"
    assert sorted(path.name for path in tmp_path.glob("*.scp")) == ["hyp.scp", "ref.scp"]


class NoLists:
    """Says that it cannot take lists; given one it would answer wrongly."""

    supports_batch = False

    def __call__(self, text: Any) -> Any:
        return "WRONG" if isinstance(text, list) else text.upper()


@pytest.mark.parametrize("model", [upper, ListModel(), NoLists()])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_batch_size_never_changes_the_result(tmp_path: Path, model: Any, batch_size: int | None) -> None:
    """Whether the model takes lists (then once a batch), fails on them or declines them, the files are the same."""
    before = getattr(model, "calls", 0)
    make(model, batch_size=batch_size, output_dir=tmp_path)(range(7))
    want = "".join(f"utt{k} {word.upper()}\n" for k, word in enumerate(WORDS))
    assert (tmp_path / "hyp.scp").read_text() == want
    assert not isinstance(model, ListModel) or model.calls - before == (3 if batch_size else 7)


def test_an_output_function_may_split_the_batch_itself() -> None:
    """A batched output that is no list goes to output_fn as it is, with lists."""

    def joined(text: Any) -> Any:
        return {"joined": " ".join(text)} if isinstance(text, list) else {"joined": text}

    def split(*, data: Any, model_output: Any, idx: Any) -> Any:
        parts = model_output["joined"].split()
        if isinstance(idx, list):
            return [
                {"utt_id": str(i), "hyp": p, "ref": d["text"]}
                for i, p, d in zip(idx, parts, data, strict=True)
            ]
        return {"utt_id": str(idx), "hyp": parts[0], "ref": data["text"]}

    one_by_one = make(joined, {"output_fn": split})(range(7))
    assert make(joined, {"output_fn": split}, batch_size=3)(range(7)) == one_by_one


def test_forward_takes_a_list_of_indices() -> None:
    """Called by hand with a list, forward returns a list of results."""
    env = Provider(ListModel(), {"input_key": "text", "output_fn": rows}).build_env_local()
    assert [row["hyp"] for row in InferenceRunner.forward([1, 2], **env)] == ["ONE", "TWO"]
    assert InferenceRunner.forward(1, **env)["hyp"] == "ONE"


def test_without_an_output_function_the_model_returns_the_row() -> None:
    """The model's own dict is the result, for one item and for a batch of them."""

    def model(text: Any) -> Any:
        if isinstance(text, list):
            return [model(one) for one in text]
        return {"utt_id": text, "hyp": text.upper(), "ref": ""}

    assert make(model, {"output_fn": None})([3]) == [{"utt_id": "three", "hyp": "THREE", "ref": ""}]
    assert len(make(model, {"output_fn": None}, batch_size=2)(range(7))) == 7


def test_model_kwargs_and_several_inputs_reach_the_model() -> None:
    """Each input key is a keyword of the model, beside model_kwargs; a dotted path names the output function."""

    def model(text: str, name: str, end: str) -> str:
        return f"{name}:{text}{end}"

    params = {"input_key": ["text", "name"], "model_kwargs": {"end": "!"}}
    params |= {"output_fn": None, "output_fn_path": f"{__name__}.rows"}
    assert make(model, params)([4])[0]["hyp"] == "utt4:four!"


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("rows", ConfigError, "output_fn_path = 'rows': cannot be imported"),
        ("json.no_such_name", ConfigError, "has no attribute 'no_such_name'"),
        (f"{__name__}.WORDS", TypeError, "is a list, not a function"),
    ],
)
def test_a_wrong_output_fn_path_says_why(path: str, kind: type[Exception], message: str) -> None:
    """Each way a path can be wrong has its own message."""
    with pytest.raises(kind, match=message):
        load_function(path)


@pytest.mark.parametrize("idx", [0, [0, 1]])
def test_a_missing_or_unknown_input_key_is_an_error(idx: Any) -> None:
    """Without input_key in the env the message asks for it; one that the item lacks is named, with those it has."""
    dataset = [{"text": "a"}] * 2
    with pytest.raises(RuntimeError, match="input_key must be provided"):
        InferenceRunner.forward(idx, dataset=dataset, model=upper)
    with pytest.raises(KeyError, match=r"Input key 'speech' not found in dataset item .*'text'"):
        InferenceRunner.forward(idx, dataset=dataset, model=upper, input_key="speech")


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ("text", TypeError, "item 5: the output must be a dict .* got str"),
        ({"utt_id": "a", "hyp": "b"}, ValueError, "item 5: the output has 'utt_id', 'hyp' and lacks 'ref'"),
        ({"utt_id": "a", "hyp": "x\ny", "ref": ""}, ValueError, "item 5: 'hyp': .*line break"),
        ({"utt_id": "a", "hyp": "", "ref": ""}, ValueError, "items 5 and 6 have the same utterance id 'a'"),
    ],
)
def test_wrong_results_are_refused(tmp_path: Path, row: Any, kind: type[Exception], message: str) -> None:
    """A result of the wrong form, or a second one with an id, is an error that names the item; no file is written."""
    runner = make(params={"output_fn": lambda **_: row}, output_dir=tmp_path)
    with pytest.raises(kind, match=message):
        runner([5, 6])
    assert list(tmp_path.glob("*.scp")) == []


def best_of(n: int) -> Callable[..., Any]:
    def output_fn(*, data: Any, model_output: Any, idx: Any) -> Any:
        return {"utt_id": data["name"], "hyp": [f"{model_output}{k}" for k in range(n)], "ref": data["text"]}

    return output_fn


def test_lists_go_to_numbered_files_and_stale_ones_are_removed(tmp_path: Path) -> None:
    """Entry k of a list is in `hyp<k>.scp`; a later run with fewer leaves none of the old ones."""
    make(params={"output_fn": best_of(3)}, output_dir=tmp_path)([0, 1])
    assert (tmp_path / "hyp2.scp").read_text() == "utt0 ZERO2\nutt1 ONE2\n"
    assert not (tmp_path / "hyp.scp").exists()
    (tmp_path / "hyper.scp").write_text("someone else's\n")
    make(params={"output_fn": best_of(1)}, output_dir=tmp_path, resume=False)([0])
    assert sorted(p.name for p in tmp_path.glob("*.scp")) == ["hyp0.scp", "hyper.scp", "ref.scp"]


def test_each_output_has_one_kind_of_file_of_its_own() -> None:
    """A key is a list always or never, and a list under "hyp" cannot stand beside a key "hyp1"."""

    def mixed(*, data: Any, model_output: Any, idx: Any) -> Any:
        return {"utt_id": data["name"], "hyp": [model_output] if idx else model_output, "ref": ""}

    with pytest.raises(TypeError, match="item 1: 'hyp' is a list for some items"):
        make(params={"output_fn": mixed})([0, 1])
    clash = {"utt_id": "a", "hyp": ["a", "b"], "hyp1": "c"}
    with pytest.raises(ValueError, match=r"two outputs go to hyp1\.scp"):
        make(params={"output_fn": lambda **_: clash}, output_keys=["hyp", "hyp1"])([0])


def test_keys_can_be_chosen(tmp_path: Path) -> None:
    """hyp_key and ref_key take lists; output_keys replaces both; an id key may have any name."""
    params = {"output_fn": lambda **c: {"id": c["idx"], "a": 1, "b": 2, "c": 3}}
    make(params=params, idx_key="id", hyp_key=["a", "b"], ref_key=None, output_dir=tmp_path / "x")([0])
    assert sorted(p.name for p in (tmp_path / "x").glob("*.scp")) == ["a.scp", "b.scp"]
    make(params=params, idx_key="id", output_keys="c", output_dir=tmp_path / "y")([0])
    assert [(p.name, p.read_text()) for p in (tmp_path / "y").glob("*.scp")] == [("c.scp", "0 3\n")]


def fail_at_2(*, data: Any, model_output: Any, idx: Any) -> Any:
    if idx == 2:
        raise OSError("bad audio")
    return rows(data=data, model_output=model_output, idx=idx)


def test_failed_items_are_listed_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With on_error="record" the files hold the rest, errors.jsonl the failure, a warning the count."""
    runner = make(params={"output_fn": fail_at_2}, on_error="record", output_dir=tmp_path)
    with caplog.at_level(logging.WARNING):
        results = runner(range(4))
    assert results[2].error_type == "OSError"
    assert (tmp_path / "hyp.scp").read_text() == "utt0 ZERO\nutt1 ONE\nutt3 THREE\n"
    (line,) = (tmp_path / "errors.jsonl").read_text().splitlines()
    told = {"index": 2, "type": "OSError", "message": "bad audio", "attempts": 1, "cause": "error"}
    assert json.loads(line).items() >= told.items()
    assert "1 of 4 items failed and are not in the .scp files; the first: item 2, OSError: bad" in caplog.text


def test_a_later_run_leaves_no_outputs_of_the_one_before(tmp_path: Path) -> None:
    """After the cause is mended, `retry_failed` completes the files; where all items fail they are empty."""
    make(params={"output_fn": fail_at_2}, on_error="record", output_dir=tmp_path)(range(4))
    make(output_dir=tmp_path, resume="force", retry_failed=True)(range(4))
    assert (tmp_path / "hyp.scp").read_text() == "utt0 ZERO\nutt1 ONE\nutt2 TWO\nutt3 THREE\n"
    assert (tmp_path / "errors.jsonl").read_text() == ""
    make(params={"output_fn": fail_at_2}, on_error="record", output_dir=tmp_path, resume=False)([2])
    assert (tmp_path / "hyp.scp").read_text() == ""
