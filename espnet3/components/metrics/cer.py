"""Character error rate."""

from __future__ import annotations

from espnet3.components.metrics.error_rate import ErrorRate


class CER(ErrorRate):
    """Character error rate: edited characters over reference characters, as a fraction.

    White space between words, of whatever kind and length, counts as one character.
    """

    name = "cer"
    units = "characters"
