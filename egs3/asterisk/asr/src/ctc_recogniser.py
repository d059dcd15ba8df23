"""The trained character model as a recogniser: the infer stage gives it recordings, one or several at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from src.ctc import CharacterCTC, best_path
from src.features import LogMel


class CTCRecogniser:
    """Writes the best character of each frame.

    It computes in double precision: what else is in a batch changes the last bits of a sum, and never a character.

    Args:
        weights: `model.pth` of the stage train.
        device: "cpu", "cuda", ...; "auto": a GPU where there is one.
        threads: Of a process, on processors: with several workers, one each.
        **options: Of `CharacterCTC`, as they were in training.
    """

    supports_batch = True

    def __init__(self, weights: str | Path, device: str = "auto", threads: int = 1, **options: Any) -> None:
        if not Path(weights).is_file():
            raise FileNotFoundError(f"{weights} is not there; run the stage train first")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_num_threads(threads)
        self.log_mel = LogMel()
        self.model = CharacterCTC(**options)
        self.model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.model.to(device, torch.float64).eval()
        self.device = device

    def __call__(self, speech: Any) -> Any:
        """Return the words of a recording; of a list, a list.

        Args:
            speech: 16-bit mono samples, a numpy array; or several of them.
        """
        if not isinstance(speech, list):
            return self([speech])[0]
        feats = [torch.from_numpy(self.log_mel(one)).double() for one in speech]
        with torch.inference_mode():
            scores, lengths = self.model.scores(
                torch.nn.utils.rnn.pad_sequence(feats, batch_first=True).to(self.device),
                torch.tensor([len(one) for one in feats], device=self.device),
            )
        return [best_path(one[:length]) for one, length in zip(scores.cpu(), lengths.tolist(), strict=True)]
