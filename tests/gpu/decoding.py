"""The recipe's character model on a GPU of each worker: what the tests of `make test-gpu` and its benchmark run."""

import os
import sys
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider

RECIPE = Path(__file__).resolve().parents[2] / "egs3/asterisk/asr"
SIZES = {"hidden": 96, "layers": 5, "kernel": 7}
SECONDS = (1.0, 6.0)  # the shortest and the longest recording


def recordings(n: int) -> list[Any]:
    """Return noise of several lengths, as 16-bit samples: the same for the same number."""
    import numpy

    draw = numpy.random.default_rng(0)
    lengths = (16000 * draw.uniform(*SECONDS, n)).astype(int)
    return [draw.normal(0, 3000, length).astype(numpy.int16) for length in lengths]


def recogniser(weights: str, device: str) -> Any:
    """Return the recogniser of the recipe's stage infer."""
    if str(RECIPE) not in sys.path:
        sys.path.insert(0, str(RECIPE))
    from src.ctc_recogniser import CTCRecogniser

    return CTCRecogniser(weights, device, **SIZES)


def write_weights(file: Path) -> str:
    """Write the weights of a model that has learned nothing, but writes a lot, and return the file's name."""
    if str(RECIPE) not in sys.path:
        sys.path.insert(0, str(RECIPE))
    import torch

    from src.ctc import CharacterCTC

    torch.manual_seed(1)
    torch.save(CharacterCTC(**SIZES).state_dict(), file)
    return str(file)


class Recordings(EnvironmentProvider):
    """Recordings, and the model on the device of the config."""

    def build_env_local(self) -> dict[str, Any]:
        model = recogniser(self.config["weights"], self.config["device"])
        return {"speech": recordings(self.config["n"]), "model": model}


class Decode(BaseRunner):
    """Writes what the model hears, where that was, and which GPUs the process sees."""

    @staticmethod
    def forward(idx: int, speech: list[Any], model: Any) -> dict[str, Any]:
        return Decode.batch_forward([idx], speech, model)[0]

    @staticmethod
    def batch_forward(indices: list[int], speech: list[Any], model: Any) -> list[dict[str, Any]]:
        device = str(next(model.model.parameters()).device)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        texts = model([speech[idx] for idx in indices])
        return [{"text": text, "device": device, "visible": visible} for text in texts]


class Device(EnvironmentProvider):
    """The device alone."""

    def build_env_local(self) -> dict[str, Any]:
        return {"device": self.config["device"]}


class Asserts(BaseRunner):
    """Reads beyond a tensor at one item, after which no CUDA call of its process succeeds."""

    @staticmethod
    def forward(idx: int, device: str) -> float:
        return Asserts.batch_forward([idx], device)[0]

    @staticmethod
    def batch_forward(indices: list[int], device: str) -> list[float]:
        import torch

        if 5 in indices and device == "cpu":  # rehearsed where there is no GPU
            raise RuntimeError("CUDA error: device-side assert triggered")
        at = torch.tensor([99 if idx == 5 else idx for idx in indices], device=device)
        return [float(value) for value in torch.arange(48, device=device)[at].cpu()]


class Fills(BaseRunner):
    """Takes a third of the device's memory for each item of a batch, so that two fit."""

    @staticmethod
    def forward(idx: int, device: str) -> int:
        return Fills.batch_forward([idx], device)[0]

    @staticmethod
    def batch_forward(indices: list[int], device: str) -> list[int]:
        import torch

        if device == "cpu":  # rehearsed where there is no GPU
            if len(indices) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. (rehearsed on a processor)")
            return list(indices)
        third = torch.cuda.get_device_properties(0).total_memory // 3
        taken = torch.zeros(len(indices) * third, dtype=torch.uint8, device=device)
        return [idx + int(taken[0]) for idx in indices]
