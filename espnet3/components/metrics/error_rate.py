"""The common half of WER and CER: counts, a rate, and separate figures for longer utterances."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from espnet3.components.instantiate import require
from espnet3.components.metrics.abs_metric import AbsMetric
from espnet3.parallel import parallel_map

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_PART = 100  # pairs that are counted together: some milliseconds of work
_NONE = SimpleNamespace(substitutions=0, deletions=0, insertions=0, hits=0)


class ErrorRate(AbsMetric):
    """Edits divided by reference units, over all utterances and over the longer ones.

    Pairs are counted by `parallel_map`, so on the workers of the config that is registered.

    One-word utterances have no context: a recogniser with a language model does far worse on them, and a corpus full of
    them says little about sentences. Each entry of `min_words` therefore adds a group of the utterances whose reference
    has at least that many words.

    Args:
        ref_key: Column of the references.
        hyp_key: Column of the hypotheses.
        min_words: Least numbers of reference words, one group each.
        normalize: Unicode form that both texts are brought to first: "NFC", "NFD", "NFKC" or "NFKD"; None leaves them
            as they are, so that an accent written as one character differs from one written as two.

    Raises:
        ValueError: An argument is something else.
    """

    name: str
    """Key of the rate in the result, such as "wer"."""
    units: str
    """Key of the number of reference units, "words" or "characters"."""

    def __init__(
        self,
        ref_key: str = "ref",
        hyp_key: str = "hyp",
        min_words: Sequence[int] = (2, 5),
        normalize: str | None = None,
    ) -> None:
        if normalize not in (None, *_FORMS):
            raise ValueError(f"normalize = {normalize!r}: must be one of {', '.join(_FORMS)}, or None")
        self.normalize = normalize
        self.ref_key = ref_key
        self.hyp_key = hyp_key
        self.min_words = tuple(min_words)
        for least in self.min_words:
            if not isinstance(least, int) or least < 1:
                raise ValueError(f"min_words: {least!r} is not a positive number of words")

    def count(self, references: list[str], hypotheses: list[str]) -> Any:
        """Return the `substitutions`, `deletions`, `insertions` and `hits` of some pairs, as jiwer counts them."""
        jiwer = require("jiwer", "recipe", "an error rate")
        return getattr(jiwer, f"process_{self.units}")(references, hypotheses)

    def __call__(
        self, data: Mapping[str, Sequence[str]], test_name: str, inference_dir: Path
    ) -> dict[str, Any]:
        """Return the rate and its counts, and the same for each group of `min_words`."""
        for key in (self.ref_key, self.hyp_key):
            if key not in data:
                raise KeyError(f"{type(self).__name__}: no column {key!r} among {sorted(data)}")
        pairs = list(zip(data[self.ref_key], data[self.hyp_key], strict=True))
        parts = [pairs[at : at + _PART] for at in range(0, max(len(pairs), 1), _PART)]
        counted = parallel_map(partial(_counted, self), parts)
        whole, *longer = (_score(self, group) for group in zip(*counted, strict=True))
        return {**whole, "min_words": dict(zip(map(str, self.min_words), longer, strict=True))}


# functions, not methods: a subclass may name its own as it likes


def _counted(rate: ErrorRate, pairs: Sequence[tuple[str, str]]) -> list[dict[str, int]]:
    clean = [(_spaced(ref, rate.normalize), _spaced(hyp, rate.normalize)) for ref, hyp in pairs]
    counted = []
    for least in (0, *rate.min_words):
        group = [pair for pair in clean if len(pair[0].split()) >= least]
        found = rate.count([ref for ref, _ in group], [hyp for _, hyp in group]) if group else _NONE
        edits = {name: getattr(found, name) for name in ("substitutions", "deletions", "insertions")}
        errors, units = sum(edits.values()), found.substitutions + found.deletions + found.hits
        exact = sum(ref == hyp for ref, hyp in group)
        counted.append(
            {"errors": errors, rate.units: units, **edits, "utterances": len(group), "exact": exact}
        )
    return counted


def _spaced(text: str, form: Any) -> str:
    return " ".join((unicodedata.normalize(form, text) if form else text).split())


def _score(rate: ErrorRate, parts: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    total = {key: sum(part[key] for part in parts) for key in parts[0]}
    units = total[rate.units]
    # Without a reference unit there is no rate: null in JSON, where 0 would look perfect.
    return {rate.name: total["errors"] / units if units else None, **total}
