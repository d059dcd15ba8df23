"""The stage compare: several models on the same held-out prompts, in one table and one plot."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from espnet3.components.data.files import write_text_atomic
from espnet3.components.instantiate import require as require_package
from espnet3.parallel import parallel_map
from espnet3.parallel.errors import MissingPackageError
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.base.inference import infer
from espnet3.systems.base.scp import read_aligned
from espnet3.systems.configs.loading import load_configs
from espnet3.systems.configs.mistakes import require

logger = logging.getLogger(__name__)

_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_GROUPS = (1, 2, 5)  # references of at least so many words


@dataclass(frozen=True, slots=True)
class Counts:
    """Edits of one utterance.

    Attributes:
        words: Words of the reference.
        word_errors: Words that were replaced, left out or added.
        characters: Characters of the reference.
        character_errors: The same of characters.
    """

    words: int
    word_errors: int
    characters: int
    character_errors: int


def count(pair: tuple[str, str]) -> dict[str, int]:
    """Return the counts of a reference and a hypothesis."""
    import jiwer

    reference, hypothesis = pair
    words = jiwer.process_words(reference, hypothesis)
    characters = jiwer.process_characters(reference, hypothesis)
    return asdict(
        Counts(
            len(reference.split()),
            words.substitutions + words.deletions + words.insertions,
            len(reference),
            characters.substitutions + characters.deletions + characters.insertions,
        )
    )


def compare(config: Any) -> dict[str, list[Counts]]:
    """Decode the held-out prompts by each model, and write `comparison.json` and `comparison.png`.

    The config has:

    - `models`: name -> the inference config of the model, as `--inference_config` takes it;
    - `test_set`: what differs from the block `dataset` of those configs, such as `{split: test}`;
    - `comparison_dir`: where table and plot go;
    - `recipe_dir`, `exp_tag`s and the like as everywhere; `parallel` (optional): of decoding and counting.

    Returns:
        Model -> the counts of each utterance, in the order of the test set.
    """
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    require(config, "compare", ("models", "test_set", "comparison_dir"))
    recipe, folder = Path(config.recipe_dir), Path(config.comparison_dir)
    counts: dict[str, list[Counts]] = {}
    for name, file in config.models.items():
        inference = load_configs(recipe, {"inference": str(file)})["inference"]
        inference.recipe_dir = str(recipe)
        inference.test_sets = {"held_out": dict(config.test_set)}
        inference.pop("parallel", None)
        with stage_parallel(config):
            done = infer(inference)["held_out"]
            rows = read_aligned(done.folder, {"ref": "ref", "hyp": "hyp"})
            found = parallel_map(count, list(zip(rows["ref"], rows["hyp"], strict=True)))
        counts[str(name)] = [Counts(**each) for each in found]
    folder.mkdir(parents=True, exist_ok=True)
    listed = {name: [asdict(each) for each in each_model] for name, each_model in counts.items()}
    write_text_atomic(folder / "comparison.json", json.dumps(listed, indent=1) + "\n")
    write_text_atomic(folder / "comparison.txt", comparison_table(counts) + "\n")
    plot(counts, folder / "comparison.png")
    return counts


def rate(counts: Sequence[Counts], errors: str, units: str) -> float | None:
    """Return errors divided by units over some utterances; None without a unit."""
    total = sum(getattr(each, units) for each in counts)
    return sum(getattr(each, errors) for each in counts) / total if total else None


def comparison_table(counts: Mapping[str, Sequence[Counts]]) -> str:
    """Return one line for each model and group of utterances."""
    rows = [("model", "utterances", "WER", "CER")]
    for name, whole in counts.items():
        for least in _GROUPS:
            group = [each for each in whole if each.words >= least]
            label = f"{len(group)} ({least}+ words)" if least > 1 else str(len(group))
            rates = (rate(group, "word_errors", "words"), rate(group, "character_errors", "characters"))
            rows.append((name, label, *("-" if each is None else f"{100 * each:.1f} %" for each in rates)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def plot(counts: Mapping[str, Sequence[Counts]], path: Path) -> None:
    """Draw each utterance's character error rate against its length, and each model's mean by length."""
    try:
        figures = require_package("matplotlib.figure", "report", "the plot")
    except MissingPackageError as error:
        logger.warning("%s", error)
        return
    figure = figures.Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, each_model in counts.items():
        lengths = [each.characters for each in each_model]
        rates = [100 * each.character_errors / each.characters for each in each_model]
        points = axes.scatter(lengths, rates, s=14, alpha=0.45)
        axes.plot(*_means(each_model), color=points.get_facecolor()[0][:3], linewidth=2, label=name)
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, [str(length) for length in _TICKS])
    axes.set_ylim(-3, 130)
    axes.set_xlabel("characters of the reference")
    axes.set_ylabel("character error rate (%)")
    axes.set_title("Held-out prompts: points are utterances, lines the rate of each quarter")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def _means(counts: Sequence[Counts], parts: int = 4) -> tuple[list[float], list[float]]:
    """Return mean length and rate of each quarter of the utterances, shortest first."""
    ordered = sorted(counts, key=lambda each: each.characters)
    groups = [ordered[at * len(ordered) // parts : (at + 1) * len(ordered) // parts] for at in range(parts)]
    groups = [group for group in groups if group]
    lengths = [sum(each.characters for each in group) / len(group) for group in groups]
    return lengths, [100 * (rate(group, "character_errors", "characters") or 0) for group in groups]
