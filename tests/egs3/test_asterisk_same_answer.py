"""A recogniser that keeps its noise estimate from one utterance to the next is found out, on real speech."""

from pathlib import Path
from typing import Any

import pytest

from dataset.dataset import ManifestDataset
from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.testing import same_answer
from src.recogniser import Recogniser


class Short(EnvironmentProvider):
    """The shortest prompts of a few words, and a recogniser."""

    def build_env_local(self) -> dict[str, Any]:
        dataset = ManifestDataset(Path(self.config["corpus"]) / "manifest.jsonl", min_words=3)
        order = sorted(range(len(dataset)), key=lambda k: dataset.items[k].seconds)
        return {"dataset": dataset, "order": order, "model": Recogniser()}


class Forgets(BaseRunner):
    """Decodes without `reinit_feat()`, as one does who has not read of it."""

    @staticmethod
    def forward(idx: int, dataset: Any, order: list[int], model: Any) -> str:
        decoder = model._decoder
        decoder.start_utt()
        decoder.process_raw(dataset[order[idx]]["speech"].tobytes(), full_utt=True)
        decoder.end_utt()
        found = decoder.hyp()
        return "" if found is None else str(found.hypstr)


def test_a_decoder_that_is_not_reset_is_named_with_the_item_and_the_reason(corpus: Path) -> None:
    """The first item that differs is told, that state is kept between items, and what to do."""
    provider = Short({"corpus": str(corpus)})
    with pytest.raises(AssertionError, match=r"item \d+ differs: .*state is kept between items: .*reset it"):
        same_answer(Forgets(provider), range(17, 20), n_workers=(1,), batch_sizes=(None,))
