"""Cuts of lhotse, from a manifest on disk."""

import json
from pathlib import Path

import numpy
import pytest
import soundfile

from espnet3.components.data.collect_stats import CollectStatsProvider, CollectStatsRunner
from espnet3.components.data.data_organizer import indices_of
from espnet3.components.data.lhotse import LhotseDataset
from espnet3.parallel import set_parallel
from tests.components.needed import needed

lhotse = needed("lhotse")

RATE = 16000


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Return a manifest of three cuts: two of one recording, one without words."""
    samples = numpy.arange(RATE, dtype="int16")
    soundfile.write(tmp_path / "r.wav", samples, RATE)
    recording = lhotse.Recording.from_file(tmp_path / "r.wav", recording_id="r")

    def cut(name: str, start: float, duration: float, *texts: str) -> object:
        said = [
            lhotse.SupervisionSegment(f"{name}{k}", "r", start=k / 10, duration=0.1, text=text, speaker="ann")
            for k, text in enumerate(texts)
        ]
        return lhotse.MonoCut(name, start, duration, channel=0, recording=recording, supervisions=said)

    cuts = [cut("z", 0.0, 0.5, "one", "two"), cut("a", 0.25, 0.25, "three"), cut("m", 0.0, 1.0)]
    lhotse.CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    return tmp_path / "cuts.jsonl.gz"


def test_cuts_become_items(manifest: Path) -> None:
    """An item has the samples, the joined texts, the speaker and the length of its cut; by id and by position."""
    dataset = LhotseDataset(manifest, rate=RATE)
    assert list(indices_of(dataset)) == ["z", "a", "m"]
    item = dataset["z"]
    assert (item["text"], item["speaker"], item["seconds"]) == ("one two", "ann", 0.5)
    assert (dataset[1]["utt_id"], dataset[1]["speech"].shape) == ("a", (RATE // 4,))
    assert dataset[1]["speech"][0] == 4000 / 32768
    assert (dataset["m"]["text"], dataset["m"]["speaker"]) == (None, None)


def test_statistics_of_cuts_are_the_same_on_two_workers(manifest: Path, tmp_path: Path) -> None:
    """Ids travel, no cuts: two workers leave the bytes of one process."""
    target = "espnet3.components.data.lhotse.LhotseDataset"
    entry = {"_target_": target, "data_src_args": {"cuts": str(manifest)}}
    features = {"_target_": "tests.components.waves.Frames"}
    provider = CollectStatsProvider({"dataset": {"train": [entry]}, "split": "train", "features": features})
    for workers in (1, 2):
        set_parallel({"env": "local", "n_workers": workers})
        CollectStatsRunner(provider, output_dir=tmp_path / str(workers), progress=False)(["z", "a", "m"])
    for name in ("feats_stats.npz", "feats_shape", "speech_shape"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert (tmp_path / "1/feats_shape").read_text() == "z 80,7\na 40,7\nm 160,7\n"


def test_repeated_ids_and_empty_manifests_are_refused(manifest: Path, tmp_path: Path) -> None:
    """Two cuts with one id are named with their places, and found by position; a manifest without cuts is said."""
    cuts = list(lhotse.CutSet.from_file(manifest))
    again = tmp_path / "again.jsonl"
    again.write_text("".join(json.dumps(cut.to_dict()) + "\n" for cut in [*cuts, cuts[1].with_id("z")]))
    dataset = LhotseDataset(again)
    assert [dataset[k]["seconds"] for k in range(len(dataset))] == [0.5, 0.25, 1.0, 0.25]
    with pytest.raises(ValueError, match=r"the id 'z' is there twice, in .*again\.jsonl, 0 and 3"):
        dataset["z"]
    for name in ("empty.jsonl", "empty.jsonl.gz"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ValueError, match=rf"{name} is empty, or no manifest of cuts"):
            len(LhotseDataset(tmp_path / name))


def test_another_rate_is_refused_and_a_changed_manifest_noticed(manifest: Path) -> None:
    """A cut of another rate is an error that names it; the fingerprint is that of the manifest."""
    with pytest.raises(ValueError, match="the cut z has 16000 Hz and not 8000 Hz"):
        LhotseDataset(manifest, rate=8000)["z"]
    before = LhotseDataset(manifest).fingerprint()
    lhotse.CutSet.from_file(manifest).to_eager().subset(first=2).to_file(manifest)
    assert LhotseDataset(manifest).fingerprint() != before
