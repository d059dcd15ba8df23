"""Datasets of the library `datasets`, from files on disk."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import soundfile

from espnet3.components.data.data_organizer import DataOrganizer, indices_of
from espnet3.components.data.huggingface import HuggingFaceDataset
from espnet3.systems.base.inference import infer
from tests.components.needed import needed

datasets = needed("datasets")

RATE = 16000


def speech(place: int) -> numpy.ndarray:
    return (numpy.arange(400 + 10 * place) * 3).astype("int16")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder of save_to_disk with three rows: two with the audio in them, one with a path."""
    for place in range(3):
        soundfile.write(tmp_path / f"{place}.wav", speech(place), RATE)
    table = datasets.Dataset.from_dict(
        {
            "id": ["b", "a", "c"],
            "audio": [
                {"bytes": (tmp_path / "0.wav").read_bytes(), "path": None},
                {"bytes": (tmp_path / "1.wav").read_bytes(), "path": "gone.wav"},
                {"bytes": None, "path": str(tmp_path / "2.wav")},
            ],
            "sentence": ["one", "two", "three"],
        }
    ).cast_column("audio", datasets.Audio())
    table.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_rows_become_items_with_decoded_audio(saved: Path) -> None:
    """Audio in a row, beside a path that is gone, and in a file comes as samples; other columns as they are."""
    fields = {"speech": "audio", "text": "sentence"}
    dataset = HuggingFaceDataset(saved=saved, fields=fields, id_column="id", dtype="int16", rate=RATE)
    assert [dataset[k]["text"] for k in range(len(dataset))] == ["one", "two", "three"]
    for place in range(3):
        assert (dataset[place]["speech"] == speech(place)).all()
    assert dataset["a"]["utt_id"] == "a" and dataset["a"]["text"] == "two"


def test_indices_are_ids_where_there_are_ids(saved: Path) -> None:
    """With an id column a run's indices are its texts, of a whole split too; without one they are positions."""
    entry = {
        "_target_": "espnet3.components.data.huggingface.HuggingFaceDataset",
        "data_src_args": {"saved": str(saved), "id_column": "id", "fields": {"text": "sentence"}},
    }
    train = DataOrganizer(train=[entry]).train
    assert indices_of(train) == ["b", "a", "c"]
    assert train["c"] == {"utt_id": "c", "text": "three"}
    plain = HuggingFaceDataset(saved=saved, fields={"text": "sentence"})
    assert (list(indices_of(plain)), plain[2]["utt_id"]) == ([0, 1, 2], "2")


def test_files_are_loaded_by_load_dataset(saved: Path, tmp_path: Path) -> None:
    """`path` and further arguments go to load_dataset."""
    datasets.load_from_disk(str(saved)).remove_columns("audio").to_parquet(str(tmp_path / "x.parquet"))
    dataset = HuggingFaceDataset(
        "parquet",
        data_files=str(tmp_path / "x.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
        fields={"text": "sentence"},
    )
    assert [dataset[k]["text"] for k in range(3)] == ["one", "two", "three"]


def make_shout() -> Any:
    return lambda text: text.upper()


def test_two_workers_decode_by_ids(saved: Path, tmp_path: Path) -> None:
    """The stage infer runs over the ids, on two workers as in this process, with the same bytes."""
    entry = {
        "name": "few",
        "_target_": "espnet3.components.data.huggingface.HuggingFaceDataset",
        "data_src_args": {"saved": str(saved), "id_column": "id", "fields": {"text": "sentence"}},
    }
    config = {
        "dataset": {"test": [entry]},
        "model": {"_target_": f"{__name__}.make_shout"},
        "input_key": "text",
        "output_fn": f"{__name__}.row",
        "inference_dir": str(tmp_path / "one"),
        "runner": {"progress": False},
    }
    infer(config)
    infer({**config, "inference_dir": str(tmp_path / "two"), "parallel": {"env": "local", "n_workers": 2}})
    text = (tmp_path / "one/few/hyp.scp").read_text()
    assert text == "b ONE\na TWO\nc THREE\n" == (tmp_path / "two/few/hyp.scp").read_text()
    assert '"index":"b"' in (tmp_path / "one/few/results.jsonl").read_text().replace(" ", "")


def row(*, data: Any, model_output: Any, idx: Any) -> dict[str, Any]:
    return {"utt_id": data["utt_id"], "hyp": model_output, "ref": data["text"]}


def test_a_changed_dataset_has_another_fingerprint(saved: Path, tmp_path: Path) -> None:
    """Another text, id or recording is another dataset to a run; the same rows written again are not."""
    fields = {"speech": "audio", "text": "sentence"}

    def fingerprint(folder: Path) -> str:
        return HuggingFaceDataset(saved=folder, fields=fields, id_column="id").fingerprint()

    rows = datasets.load_from_disk(str(saved))
    first = fingerprint(saved)
    raw(rows).map(lambda row: row).cast_column("audio", datasets.Audio()).save_to_disk(str(tmp_path / "same"))
    assert fingerprint(tmp_path / "same") == first
    longer = {"bytes": (tmp_path / "1.wav").read_bytes(), "path": None}
    changes = {"sentence": "anew", "id": "z", "audio": longer}
    for column, value in changes.items():
        changed = [{**row, column: value} if place == 0 else row for place, row in enumerate(raw(rows))]
        folder = tmp_path / f"changed {column}"
        table = datasets.Dataset.from_list(changed)
        table.cast_column("audio", datasets.Audio()).save_to_disk(str(folder))
        assert fingerprint(folder) != first, column


def raw(rows: Any) -> Any:
    return rows.cast_column("audio", datasets.Audio(decode=False))


def test_a_row_without_audio_a_stream_and_a_wanted_rate_are_said(saved: Path, tmp_path: Path) -> None:
    """A row without audio is named, a stream refused, and the rate that a column asks for is checked."""
    features = datasets.load_from_disk(str(saved)).features
    rows = [{"id": "none", "audio": None, "sentence": "one"}]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="none, column 'audio' has no audio"):
        HuggingFaceDataset(saved=tmp_path / "none", fields={"speech": "audio"}, id_column="id")["none"]
    (tmp_path / "a.csv").write_text("text\none\n")
    with pytest.raises(TypeError, match="leave out streaming: true"):
        len(
            HuggingFaceDataset(
                "csv", data_files=str(tmp_path / "a.csv"), streaming=True, fields={"text": "text"}
            )
        )
    wanted = raw(datasets.load_from_disk(str(saved))).cast_column("audio", datasets.Audio(sampling_rate=8000))
    wanted.save_to_disk(str(tmp_path / "wanted"))
    with pytest.raises(ValueError, match="has 16000 Hz and not 8000 Hz"):
        HuggingFaceDataset(saved=tmp_path / "wanted", fields={"speech": "audio"})[0]


def test_mistakes_are_said(saved: Path, tmp_path: Path) -> None:
    """A missing column, several splits, an id twice, another rate and no source each have their message."""
    with pytest.raises(ValueError, match="no column 'text'; the dataset has id, audio, sentence"):
        len(HuggingFaceDataset(saved=saved))
    twice = datasets.Dataset.from_dict({"id": ["a", "a"], "text": ["x", "y"]})
    twice.save_to_disk(str(tmp_path / "twice"))
    with pytest.raises(ValueError, match="the id 'a' is there twice, in rows 0 and 1"):
        indices_of(HuggingFaceDataset(saved=tmp_path / "twice", fields={"text": "text"}, id_column="id"))
    with pytest.raises(ValueError, match="column 'audio' has 16000 Hz and not 8000 Hz"):
        HuggingFaceDataset(saved=saved, fields={"speech": "audio"}, rate=8000)[0]
    with pytest.raises(ValueError, match="give either path, for load_dataset, or saved"):
        HuggingFaceDataset()
    datasets.DatasetDict({"train": twice, "test": twice}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(TypeError, match="not one split but train, test: set split"):
        len(HuggingFaceDataset(saved=tmp_path / "splits"))
