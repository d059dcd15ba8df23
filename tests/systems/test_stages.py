"""The stages infer and measure, and the system that runs them."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import soundfile
from omegaconf import OmegaConf

from espnet3.components.metrics.abs_metric import AbsMetric
from espnet3.parallel import get_parallel_config, set_parallel
from espnet3.parallel.errors import ConfigError, ItemError, WorkerSetupError
from espnet3.systems.base.inference import infer
from espnet3.systems.base.inference_provider import InferenceProvider
from espnet3.systems.base.metric import measure
from espnet3.systems.base.scp import read_scp
from espnet3.systems.base.system import BaseSystem

HERE = __name__


class Words:
    """A dataset of words; the version stands for its content."""

    def __init__(self, words: list[str], least: int = 0, version: str = "1") -> None:
        self.words = [word for word in words if len(word) >= least]
        self.version = version

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"utt_id": f"u{9 - index}", "text": self.words[index]}

    def fingerprint(self) -> str:
        return self.version


class Shout:
    def __init__(self, end: str = "") -> None:
        self.end = end

    def __call__(self, text: str, repeat: int = 1) -> str:
        return text.upper() * repeat + self.end


def output_fn(*, data: Any, model_output: Any, idx: int) -> dict[str, Any]:
    if model_output == "BAD":
        raise ValueError("bad word")
    return {"utt_id": data["utt_id"], "hyp": model_output, "ref": data["text"]}


class Exact(AbsMetric):
    def __init__(self, ref_key: str = "ref", hyp_key: str = "hyp") -> None:
        self.ref_key, self.hyp_key = ref_key, hyp_key

    def __call__(self, data: Any, test_name: str, inference_dir: Path) -> dict[str, Any]:
        pairs = zip(data[self.ref_key], data[self.hyp_key], strict=True)
        return {
            "exact": sum(r.upper() == h for r, h in pairs),
            "ids": data["utt_id"],
            "where": inference_dir.name,
        }


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return OmegaConf.create(
        {
            "inference_dir": str(tmp_path / "out"),
            "words": ["one", "three", "four"],
            "dataset": {"_target_": f"{HERE}.Words", "words": "${words}"},
            "model": {"_target_": f"{HERE}.Shout"},
            "input_key": "text",
            "output_fn": f"{HERE}.output_fn",
            "runner": {"progress": False},
        }
    )


def test_infer_writes_scp_files_of_the_one_test_set(config: Any, tmp_path: Path) -> None:
    """Without test_sets the set is called "test", and its files are in index order; any mapping is a config."""
    result = infer(OmegaConf.to_container(config))["test"]
    assert (result.items, result.failed, result.folder) == (3, 0, tmp_path / "out" / "test")
    assert (result.folder / "hyp.scp").read_text() == "u9 ONE\nu8 THREE\nu7 FOUR\n"
    assert (result.folder / "ref.scp").read_text() == "u9 one\nu8 three\nu7 four\n"


def test_test_sets_change_the_dataset(config: Any, tmp_path: Path) -> None:
    """Each entry of test_sets is a folder of outputs over the dataset with its changes."""
    config.test_sets = {"all": {}, "long": {"least": 5}}
    results = infer(config)
    assert {name: result.items for name, result in results.items()} == {"all": 3, "long": 1}
    assert (tmp_path / "out/long/hyp.scp").read_text() == "u9 THREE\n"


def test_limit_text_and_model_settings(config: Any, tmp_path: Path) -> None:
    """`limit` takes the first items, `text_key` makes a sorted Kaldi text, model_kwargs reach the model."""
    config.update({"limit": 2, "text_key": "hyp", "model_kwargs": {"repeat": 2}, "batch_size": 2})
    config.model.end = "!"
    infer(config)
    assert (tmp_path / "out/test/hyp.scp").read_text() == "u9 ONEONE!\nu8 THREETHREE!\n"
    assert (tmp_path / "out/test/text").read_text() == "u8 THREETHREE!\nu9 ONEONE!\n"


def test_failed_items_are_counted(config: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With on_error="record" infer reports the failures, measure warns, and their number is in the metrics."""
    config.words = ["one", "bad", "two"]
    config.runner.on_error = "record"
    assert infer(config)["test"].failed == 1
    results = measure({"inference_dir": config.inference_dir, "metrics": [{"_target_": f"{HERE}.Exact"}]})
    assert results[f"{HERE}.Exact"]["test"]["failed_items"] == 1
    assert "1 items failed in the infer stage and count in no metric" in caplog.text


def test_a_bad_result_is_the_items_error(config: Any) -> None:
    """The stage gives the workers the keys: the first item without a key stops the run."""
    config.output_keys = ["hyp", "score"]
    with pytest.raises(ItemError, match=r"item 0 failed.*lacks 'score'"):
        infer(config)


@pytest.mark.parametrize("key", ["dataset", "model", "inference_dir", "input_key"])
def test_a_missing_key_is_named(config: Any, key: str) -> None:
    """A config without a required key is refused, with the keys it has."""
    del config[key]
    with pytest.raises(ValueError, match=f"the inference config has no '{key}'"):
        infer(config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limit": 0}, "limit must be a positive number of items"),
        ({"test_sets": ["test"]}, "test_sets must map names"),
        ({"runner": "fast"}, "runner = 'fast': must be a block with a _target_"),
        (
            {"dataset": {"_target_": f"{HERE}.Words", "words": "???"}},
            r"dataset\.words = \?\?\?: write its value",
        ),
    ],
)
def test_a_wrong_value_is_named(config: Any, change: dict[str, Any], said: str) -> None:
    """A limit that is no positive integer, test sets and a runner that say nothing, and `???` are refused."""
    config.update(change)
    with pytest.raises(ValueError, match=said):
        infer(config)


@pytest.mark.parametrize("name", ["..", "/abs", "a/b"])
def test_a_test_set_stays_in_its_folder(config: Any, name: str, tmp_path: Path) -> None:
    """A name that leads elsewhere is refused by infer and measure before anything is written."""
    config.test_sets = {name: {}}
    with pytest.raises(ConfigError, match="test_sets = .*: must be the name of one folder, without '/'"):
        infer(config)
    with pytest.raises(ConfigError, match="must be the name of one folder"):
        measure({"inference_dir": str(tmp_path / "out"), "metrics": [], "test_sets": [name]})
    assert not (tmp_path / "out").exists()


def test_a_block_without_target_is_refused() -> None:
    """Dataset and model need a `_target_`; a missing block is named with those that are there."""
    with pytest.raises(ValueError, match="'model' has no _target_"):
        InferenceProvider.build_model({"model": {"beam": 3}})
    with pytest.raises(ValueError, match=r"no block 'model' \(it has dataset\)"):
        InferenceProvider.build_model({"dataset": {}})


def test_a_worker_with_other_data_refuses_to_work() -> None:
    """A process whose dataset has another fingerprint than the driver's says so."""
    seen = {"dataset": {"_target_": f"{HERE}.Words", "words": ["a"]}, "dataset_fingerprint": "2"}
    with pytest.raises(RuntimeError, match="fingerprint 1 in this process and had 2"):
        InferenceProvider.build_dataset(seen)

    from espnet3.systems.base.inference_runner import InferenceRunner

    seen["model"] = {"_target_": f"{HERE}.Shout"}
    runner = InferenceRunner(InferenceProvider(seen, {"input_key": "text"}), progress=False)
    with pytest.raises(WorkerSetupError, match="the data changed meanwhile"):
        runner([0])


def test_measure_writes_metrics_of_every_test_set(config: Any, tmp_path: Path) -> None:
    """metrics.json holds metric -> test set -> values; the returned dict is the same."""
    config.test_sets = {"all": {}, "long": {"least": 5}}
    metrics = {"inference_dir": tmp_path / "out", "metrics": [{"_target_": f"{HERE}.Exact"}]}
    ran = BaseSystem(inference_config=config, metrics_config=metrics).run(["measure", "infer"])
    assert list(ran) == ["infer", "measure"]  # in the system's order
    results = ran["measure"]
    assert results == json.loads((tmp_path / "out/metrics.json").read_text())
    assert {name: one["exact"] for name, one in results[f"{HERE}.Exact"].items()} == {"all": 3, "long": 1}
    assert results[f"{HERE}.Exact"]["long"]["where"] == "long"


def test_measure_reads_the_columns_that_inputs_name(config: Any, tmp_path: Path) -> None:
    """`inputs` maps a metric's columns to files."""
    infer(config)
    block = {"metric": {"_target_": f"{HERE}.Exact"}, "inputs": {"ref": "hyp", "hyp": "hyp"}}
    results = measure({"inference_dir": tmp_path / "out", "metrics": [block], "test_sets": ["test"]})
    assert results[f"{HERE}.Exact"]["test"]["ids"] == ["u9", "u8", "u7"]


def test_a_metric_takes_fields_of_the_data(config: Any, tmp_path: Path) -> None:
    """`dataset:text` is the field of the items that were decoded, read anew, and failed items are in neither column."""
    config.words = ["one", "bad", "three"]
    config.runner.on_error = "record"
    config.output_keys = ["hyp"]
    block = {"metric": {"_target_": f"{HERE}.Exact"}, "inputs": {"ref": "dataset:text", "hyp": "hyp"}}
    metrics = {"inference_dir": tmp_path / "out", "metrics": [block]}
    system = BaseSystem(inference_config=config, metrics_config=metrics)
    assert system.run(["infer", "measure"])["measure"][f"{HERE}.Exact"]["test"]["exact"] == 2
    assert (tmp_path / "out/test/dataset/text.scp").read_text() == "u9 one\nu8 bad\nu7 three\n"
    block["inputs"] = {"ref": "dataset:txt", "hyp": "hyp"}
    with pytest.raises(KeyError, match=r"the item 'u9' has no field 'txt' \(it has utt_id, text\)"):
        measure(metrics, config)
    with pytest.raises(ConfigError, match=r"dataset:txt is read from the test set of the inference config"):
        measure(metrics)


class Wave:
    """A model of several outputs, of which none but the text fits on a line."""

    supports_batch = False

    def __call__(self, text: str) -> dict[str, Any]:
        samples = numpy.arange(len(text) * 4000, dtype="float32") / 32768
        return {"hyp": text, "audio": samples, "scores": samples[:4], "facts": {"n": [1, 2]}, "own": {text}}


def outputs(*, data: Any, model_output: Any, idx: int) -> dict[str, Any]:
    return {"utt_id": data["utt_id"], **model_output}


def write_own(value: Any, output_path: Path, end: str) -> Path:
    path = output_path.with_name(output_path.name + end)
    path.write_text(",".join(value))
    return path


def test_outputs_that_are_no_text_are_files_of_their_own(config: Any, tmp_path: Path) -> None:
    """Each is written where it was computed, with the batch or alone, and its path stands in the .scp file."""
    config.model = {"_target_": f"{HERE}.Wave"}
    config.output_fn = f"{HERE}.outputs"
    config.update({"output_keys": ["hyp", "audio", "scores", "facts", "own"], "batch_size": 2})
    config.parallel = {"env": "local", "n_workers": 2}
    config.output_artifacts = {
        "audio": {"type": "wav", "sample_rate": 8000},
        "own": {"writer": {"_target_": f"{HERE}.write_own", "end": ".txt"}},
    }
    folder = infer(config)["test"].folder
    paths = {name: read_scp(folder / f"{name}.scp") for name in ("audio", "scores", "facts", "own")}
    assert {name: Path(found["u9"]).name for name, found in paths.items()} == {
        "audio": "u9.wav",
        "scores": "u9.npy",
        "facts": "u9.json",
        "own": "u9.txt",
    }
    samples, rate = soundfile.read(paths["audio"]["u8"], dtype="float32")
    assert (len(samples), rate) == (20000, 8000)
    assert numpy.array_equal(numpy.load(paths["scores"]["u9"]), samples[:4])
    assert json.loads(Path(paths["facts"]["u7"]).read_text()) == {"n": [1, 2]}
    assert Path(paths["own"]["u7"]).read_text() == "four"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ({"type": "wave"}, r"output_artifacts\.audio\.type = 'wave': must be one of .* Did you mean 'wav'"),
        ({"type": "wav"}, r"output_artifacts\.audio\.sample_rate = None: a wav file needs its rate"),
        ({"writer": {"end": 1}}, r"output_artifacts\.audio\.writer has no _target_"),
        ("wav", r"output_artifacts\.audio = 'wav': must be such as \{type: npy\}"),
    ],
)
def test_a_wrong_way_to_write_an_output_is_refused_before_any_work(
    config: Any, way: Any, said: str, tmp_path: Path
) -> None:
    """An unknown type, a wav file without its rate and a writer without a function are named with their key."""
    config.output_artifacts = {"audio": way}
    with pytest.raises(ConfigError, match=said):
        infer(config)
    assert not (tmp_path / "out").exists()


def test_measure_needs_something_to_measure(tmp_path: Path) -> None:
    """An empty folder, a missing key, a class that is no metric and a metric twice are errors."""
    exact = {"_target_": f"{HERE}.Exact"}
    with pytest.raises(FileNotFoundError, match="run the infer stage first"):
        measure({"inference_dir": tmp_path, "metrics": [exact]})
    with pytest.raises(ValueError, match="the metrics config has no 'metrics'"):
        measure({"inference_dir": tmp_path})
    with pytest.raises(TypeError, match="which is no AbsMetric"):
        measure({"inference_dir": tmp_path, "metrics": [{"_target_": f"{HERE}.Shout"}], "test_sets": ["x"]})
    (tmp_path / "x").mkdir()
    for name in ("hyp", "ref"):
        (tmp_path / "x" / f"{name}.scp").write_text("a b\n")
    with pytest.raises(ValueError, match="is listed twice"):
        measure({"inference_dir": tmp_path, "metrics": [exact, exact]})


class Asking(AbsMetric):
    ref_key = hyp_key = "hyp"

    def __call__(self, data: Any, test_name: str, inference_dir: Path) -> dict[str, Any]:
        return {"n_workers": get_parallel_config().n_workers}


class AskingBuilder:
    """Does the same when it builds."""

    found: ClassVar[list[int]] = []

    def build(self) -> bool:
        self.found.append(get_parallel_config().n_workers)
        return True


def test_each_stage_works_with_the_block_of_its_own_config(config: Any, tmp_path: Path) -> None:
    """A stage registers its config's block while it runs; afterwards, also after an error, that of before is again."""
    set_parallel({"env": "local", "n_workers": 5})
    config.create_dataset = {"_target_": f"{HERE}.AskingBuilder"}
    config.parallel = {"env": "local", "n_workers": 2}
    metrics = {"inference_dir": tmp_path / "out", "metrics": [{"_target_": f"{HERE}.Asking"}]}
    system = BaseSystem(inference_config=config, metrics_config=metrics)

    def workers_of_measure(*stages: str) -> Any:
        return system.run([*stages, "measure"])["measure"][f"{HERE}.Asking"]["test"]["n_workers"]

    assert workers_of_measure("create_dataset", "infer") == 5
    assert AskingBuilder.found.pop() == 2
    metrics["parallel"] = {"env": "local", "n_workers": 3}
    assert workers_of_measure() == 3
    config.test_sets = {}
    with pytest.raises(ValueError, match="test_sets must map"):
        system.run(["infer"])
    assert get_parallel_config().n_workers == 5


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"parallel": {"env": "local", "n_workers": 0}}, "n_workers = 0"),
        ({"trainer": {"n_workers": 4}}, "n_workers = 4: belongs to parallel, not to trainer"),
    ],
)
def test_a_wrong_block_of_any_config_is_refused_before_the_first_stage(
    config: Any, block: Any, said: str, tmp_path: Path
) -> None:
    """A mistake in the config of the last stage does not cost the first one's work."""
    metrics = {"inference_dir": tmp_path / "out", "metrics": [{"_target_": f"{HERE}.Exact"}], **block}
    with pytest.raises(ConfigError, match=said):
        BaseSystem(inference_config=config, metrics_config=metrics).run(["infer", "measure"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=said):
        measure(metrics)


def test_a_stage_without_its_config_is_an_error() -> None:
    """The message names the stage and the config it lacks."""
    with pytest.raises(ValueError, match="stage measure needs metrics_config"):
        BaseSystem().run(["measure"])
