"""The heavy loop of the builder: every prompt from G.722 to wav, on as many workers as there are."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

from espnet3.components.data.files import write_atomic
from espnet3.components.instantiate import require
from espnet3.parallel import BaseRunner, EnvironmentProvider

RATE = 16000


class DecodeProvider(EnvironmentProvider):
    """Gives the workers the folders and the decoder.

    Args:
        config: `source`, the folder with the `.g722` files; `target`, that of the wav files.
    """

    def build_env_local(self) -> dict[str, Any]:
        """Return the two folders, and the class that decodes."""
        codec = require("G722", "recipe", "decoding the prompts").G722
        return {"source": Path(self.config["source"]), "target": Path(self.config["target"]), "codec": codec}


class DecodeRunner(BaseRunner):
    """Decodes one prompt for each index, which is the prompt's key; the result is its number of samples."""

    @staticmethod
    def forward(key: str, source: Path, target: Path, codec: Any) -> int:
        """Write a prompt as 16-bit wav."""
        import numpy

        # a new decoder: it keeps its state from call to call
        decoded = codec(RATE, 64000).decode((source / f"{key}.g722").read_bytes())
        samples = numpy.asarray(decoded, dtype="<i2")

        def write(file: Any) -> None:
            with wave.open(file, "wb") as out:
                out.setnchannels(1)
                out.setsampwidth(2)
                out.setframerate(RATE)
                out.writeframes(samples.tobytes())

        write_atomic(target / wav_name(key), write, sole=False)  # the builder tidies up
        return len(samples)


def wav_name(key: str) -> str:
    """Return the name of a prompt's wav file: its utterance id and `.wav`."""
    return f"{key.replace('/', '_')}.wav"
