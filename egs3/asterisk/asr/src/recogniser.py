"""The recogniser: PocketSphinx with the US English model that its wheel brings along."""

from __future__ import annotations

import threading
from typing import Any

from espnet3.components.instantiate import require


class Recogniser:
    """Decodes one utterance at a time.

    The decoder cannot be pickled: the provider makes one in each process.

    Args:
        rate: Sampling rate of the audio.
        **options: Further decoder options of PocketSphinx, such as `lw` or `beam`.
    """

    supports_batch = False
    """A decoder is one search at a time: lists would gain nothing."""

    def __init__(self, rate: int = 16000, **options: Any) -> None:
        pocketsphinx = require("pocketsphinx", "recipe", "the recogniser")
        self._decoder = pocketsphinx.Decoder(samprate=rate, loglevel="FATAL", **options)
        # The env is shared by the threads of a process, and a decoder holds one utterance.
        self._turn = threading.Lock()

    def __call__(self, speech: Any) -> str:
        """Return the words of an utterance, or an empty string where none were found.

        Args:
            speech: 16-bit mono samples, a numpy array.

        Raises:
            TypeError: The samples are something else, which would decode to noise.
        """
        if getattr(speech, "dtype", None) != "int16" or speech.ndim != 1:
            kind = (
                f"{speech.ndim}-dimensional {speech.dtype}"
                if hasattr(speech, "dtype")
                else type(speech).__name__
            )
            raise TypeError(f"speech must be a one-dimensional int16 array, not {kind}")
        if not len(speech):
            return ""  # PocketSphinx fails on an empty buffer
        with self._turn:
            # The front end keeps its noise estimate from the utterance before; without this, 40 of
            # 551 answers changed with the order of the utterances, hence with the number of workers.
            self._decoder.reinit_feat()
            self._decoder.start_utt()
            try:
                self._decoder.process_raw(speech.tobytes(), full_utt=True)
            finally:
                self._decoder.end_utt()  # else every utterance after a failed one would fail too
            found = self._decoder.hyp()
        return "" if found is None else str(found.hypstr)
