"""Character error rate."""

from __future__ import annotations

from espnet3.components.instantiate import require
from espnet3.components.metrics.error_rate import Edits, ErrorRate


class CER(ErrorRate):
    """Character error rate: edited characters over reference characters, as a fraction.

    White space between words, of whatever kind and length, counts as one character.
    """

    name = "cer"
    units = "characters"

    def count(self, references: list[str], hypotheses: list[str]) -> Edits:
        """Count character edits with jiwer."""
        out = require("jiwer", "recipe", "an error rate").process_characters(references, hypotheses)
        return Edits(out.substitutions, out.deletions, out.insertions, out.hits)
