"""Word error rate."""

from __future__ import annotations

from espnet3.components.metrics.error_rate import Edits, ErrorRate, jiwer


class WER(ErrorRate):
    """Word error rate: edited words over reference words, as a fraction; words are what white space separates."""

    name = "wer"
    units = "words"

    def count(self, references: list[str], hypotheses: list[str]) -> Edits:
        """Count word edits with jiwer."""
        out = jiwer().process_words(references, hypotheses)
        return Edits(out.substitutions, out.deletions, out.insertions, out.hits)
