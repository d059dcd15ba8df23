"""Word error rate."""

from __future__ import annotations

from espnet3.components.metrics.error_rate import ErrorRate


class WER(ErrorRate):
    """Word error rate: edited words over reference words, as a fraction; words are what white space separates."""

    name = "wer"
    units = "words"
