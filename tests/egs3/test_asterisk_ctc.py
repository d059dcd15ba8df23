"""The recipe's character model: batches change nothing, it learns, and its recogniser writes text."""

import random
from pathlib import Path

import numpy
import pytest
import torch

from espnet3.systems.base.inference import infer
from src.ctc import CHARACTERS, CharacterCollate, CharacterCTC, best_path
from src.ctc_recogniser import CTCRecogniser

SMALL = {"hidden": 24, "layers": 2, "kernel": 5}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)  # threads that wait for each other take minutes on a busy machine


def speech(seconds: float, seed: int = 0) -> numpy.ndarray:
    samples = numpy.random.default_rng(seed).normal(0, 3000, round(16000 * seconds))
    return samples.astype(numpy.int16)


def test_what_else_is_in_a_batch_changes_no_score() -> None:
    """A recording beside a longer one has the scores that it has alone, but for the last bits of a sum."""
    model = CharacterCTC(**SMALL).double().eval()
    lengths = [7, 64, 31, 33, 2]
    feats = [torch.randn(length, 80, dtype=torch.float64) for length in lengths]
    # what stands behind: anything
    padded = torch.full((len(feats), max(lengths) + 9, 80), 1e3, dtype=torch.float64)
    for number, one in enumerate(feats):
        padded[number, : len(one)] = one
    together, frames = model.scores(padded, torch.tensor(lengths))
    for number, one in enumerate(feats):
        alone, own = model.scores(one[None], torch.tensor([len(one)]))
        assert frames[number] == own[0] == -(-lengths[number] // 4)
        torch.testing.assert_close(together[number, : own[0]], alone[0, : own[0]], rtol=0, atol=1e-12)


def test_the_best_path_drops_repetitions_and_blanks() -> None:
    """Characters that follow each other count once, a blank between two keeps both."""
    written = "_hh_e_l_ll_oo_  _ _my_"
    scores = torch.zeros(len(written), len(CHARACTERS))
    for frame, character in enumerate(written):
        scores[frame, CHARACTERS.index(character)] = 1
    assert best_path(scores) == "hello my"
    assert best_path(scores[:1]) == ""


def test_it_learns() -> None:
    """On three recordings with three texts the loss falls to a tenth, and the texts come out."""
    items = [
        {"utt_id": str(number), "speech": speech(0.8, number), "text": text}
        for number, text in enumerate(["one", "two four", "it's"])
    ]
    batch = CharacterCollate()(items)
    model = CharacterCTC(**SMALL, dropout=0.0, masks=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(120):
        loss, stats, weight = model(**batch)
        assert weight == 3 and stats["loss"] == loss.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
    scores, lengths = model.eval().scores(batch["feats"], batch["feats_lengths"])
    assert [best_path(one[:length]) for one, length in zip(scores, lengths, strict=True)] == [
        item["text"] for item in items
    ]


def test_features_are_scaled_by_the_statistics_of_the_stage(tmp_path: Path) -> None:
    """Mean and deviation come from the sums that collect_stats writes, and travel with the weights."""
    values = numpy.random.default_rng(0).normal(5, 3, (1000, 80))
    file = tmp_path / "feats_stats.npz"
    numpy.savez(file, count=1000, sum=values.sum(axis=0), sum_square=(values**2).sum(axis=0))
    model = CharacterCTC(file, **SMALL)
    scaled = (torch.from_numpy(values).float() - model.mean) * model.scale
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(80), rtol=0, atol=1e-3)
    torch.testing.assert_close(scaled.std(dim=0, correction=0), torch.ones(80), rtol=0, atol=1e-3)
    other = CharacterCTC(**SMALL)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.mean, model.mean)


def test_masks_are_for_training_alone() -> None:
    """In training two calls differ, in evaluation they are the same."""
    model = CharacterCTC(**SMALL, dropout=0.0, masks=2)
    feats, lengths = torch.randn(2, 60, 80), torch.tensor([60, 40])
    before = feats.clone()
    first, second = (model.train().scores(feats, lengths)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(feats, before)  # the batch itself stays as it is
    first, second = (model.eval().scores(feats, lengths)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.fixture
def recogniser(tmp_path: Path) -> CTCRecogniser:
    """Return a recogniser with drawn weights, which writes nonsense, but always the same."""
    torch.save(CharacterCTC(**SMALL).state_dict(), tmp_path / "model.pth")
    return CTCRecogniser(tmp_path / "model.pth", device="cpu", **SMALL)


def test_a_batch_is_decoded_as_its_recordings_are(recogniser: CTCRecogniser) -> None:
    """Any batches of recordings, the empty one among them, give the texts of one by one."""
    recordings = [speech(random.Random(seed).uniform(0.02, 2), seed) for seed in range(11)] + [speech(0)]
    alone = [recogniser(one) for one in recordings]
    assert len(set(alone)) > 5
    for size in (2, 5, 12):
        batches = [recordings[at : at + size] for at in range(0, len(recordings), size)]
        assert [text for batch in batches for text in recogniser(batch)] == alone


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """Without a training the error says which stage makes the weights."""
    with pytest.raises(FileNotFoundError, match=r"model\.pth is not there; run the stage train first"):
        CTCRecogniser(tmp_path / "model.pth")


def test_the_stage_writes_the_same_bytes_for_any_workers_and_batches(corpus: Path, tmp_path: Path) -> None:
    """infer with the own model on 1 and 2 workers, by 1 and by 16 recordings, and as detached jobs."""
    torch.save(CharacterCTC(**SMALL).state_dict(), tmp_path / "model.pth")
    config = {
        "dataset": {
            "_target_": "dataset.dataset.ManifestDataset",
            "manifest": str(corpus / "manifest.jsonl"),
        },
        "test_sets": {"test": {"split": "test", "at_most": 20}},
        "model": {
            "_target_": "src.ctc_recogniser.CTCRecogniser",
            "weights": str(tmp_path / "model.pth"),
            **SMALL,
        },
        "input_key": "speech",
        "output_fn": "src.output_fn.output_fn",
        "text_key": "hyp",
    }
    written = {}
    for workers, size, detached in ((1, 1, False), (2, 16, False), (2, 16, True)):
        folder = tmp_path / f"{workers}-{size}-{detached}"
        block = {"env": "local", "n_workers": workers}
        runner = {"progress": False, "async_mode": detached}
        way = {"inference_dir": str(folder), "batch_size": size, "parallel": block, "runner": runner}
        run = infer({**config, **way})["test"].run
        if detached:
            assert run.wait(600).done, dict(run.logs())
            run.merge()
        names = ("hyp.scp", "ref.scp", "text", "results.jsonl")
        written[folder.name] = [(folder / "test" / name).read_bytes() for name in names]
    first = written["1-1-False"]
    assert len(set(first[0].splitlines())) == 20
    assert [way for way, files in written.items() if files != first] == []
