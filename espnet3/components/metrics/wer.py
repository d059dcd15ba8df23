"""Word error rate."""

from __future__ import annotations

from espnet3.components.instantiate import require
from espnet3.components.metrics.error_rate import Edits, ErrorRate


class WER(ErrorRate):
    """Word error rate: edited words over reference words, as a fraction; words are what white space separates."""

    name = "wer"
    units = "words"

    def count(self, references: list[str], hypotheses: list[str]) -> Edits:
        """Count word edits with jiwer."""
        out = require("jiwer", "recipe", "an error rate").process_words(references, hypotheses)
        return Edits(out.substitutions, out.deletions, out.insertions, out.hits)
