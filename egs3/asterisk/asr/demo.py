#!/usr/bin/env python3
"""Decode about a hundred prompts with two workers and report; `make demo` calls this.

    python egs3/asterisk/asr/demo.py
    python egs3/asterisk/asr/demo.py --audio folder        any folder of 16 kHz mono wav files

Builds the corpus on the first run. Without references (`--audio`) the words are printed instead of
error rates.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The configs name the recipe's classes as src.* and dataset.*, whatever folder this is started in.
if (_HERE := str(Path(__file__).resolve().parent)) not in sys.path:
    sys.path.insert(0, _HERE)

from omegaconf import OmegaConf  # the path above comes first

from dataset.builder import SourceError
from dataset.dataset import FolderDataset
from espnet3.systems.base.inference import InferResult
from espnet3.systems.base.inference_provider import instantiate_block
from espnet3.systems.base.scp import read_aligned
from espnet3.systems.base.system import BaseSystem
from espnet3.systems.configs.loading import StageConfigs, load_configs
from espnet3.systems.logs import show_logs
from src.report import DemoFigures, demo_report

TEST_SET = "demo"


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audio", metavar="FOLDER", help="decode the wav files of this folder instead")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument(
        "--utterances", type=int, default=100, metavar="N", help="prompts to decode (default: 100)"
    )
    parser.add_argument(
        "--min_words", type=int, default=5, metavar="N", help="least words of a prompt (default: 5)"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="any key of the configs")
    return parser, parser.parse_intermixed_args(argv)


def configure(args: argparse.Namespace) -> StageConfigs:
    """Make the configs of the demo.

    Raises:
        OSError: There is no such folder, or it holds no wav file.
        ValueError: A file or an override is wrong.
    """
    configs = load_configs(
        Path(_HERE),
        parallel="parallel_local",
        overrides=[
            "exp_tag=demo" if args.audio is None else "exp_tag=demo_audio",
            f"parallel.n_workers={args.workers}",
            "runner.resume=false",  # the report's times are of a run that did all the work
            *args.overrides,
        ],
    )
    changes: dict[str, Any] = {"min_words": args.min_words, "at_most": args.utterances}
    if args.audio is not None:
        changes = {}
        folder = str(Path(args.audio).resolve())
        len(FolderDataset(folder))  # a file that cannot be decoded is named before anything starts
        configs["inference"]["dataset"] = {"_target_": "dataset.dataset.FolderDataset", "folder": folder}
        configs["inference"]["output_keys"] = ["hyp"]
        configs["inference"]["runner"]["on_error"] = "record"  # one bad file must not cost the others
    configs["inference"]["test_sets"] = {TEST_SET: changes}
    configs["metrics"]["test_sets"] = [TEST_SET]
    return configs


def report(configs: StageConfigs, results: dict[str, Any], audio: str | None) -> str:
    """Return the closing report of a finished demo."""
    done: InferResult = results["infer"][TEST_SET]
    config = OmegaConf.merge(configs["inference"], {"dataset": configs["inference"].test_sets[TEST_SET]})
    items = instantiate_block(config, "dataset").items
    columns = ["hyp"] if audio is not None else ["hyp", "ref"]
    table = read_aligned(done.folder, {name: name for name in columns})
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    scores = {
        path.rpartition(".")[2]: by_set[TEST_SET] for path, by_set in results.get("measure", {}).items()
    }
    source = f"recording{'s' if done.items > 1 else ''} of {audio}"
    if audio is None:
        least = configs["inference"].test_sets[TEST_SET].min_words
        source = f"Asterisk prompts of {least} or more words (voice: Allison Smith, CC-BY-SA-3.0)"
    figures = DemoFigures(
        source=source,
        utterances=done.items,
        failed=done.failed,
        audio=sum(item.seconds for item in items),
        wall=done.seconds,
        workers=configs["inference"].parallel.n_workers,
        folder=done.folder,
        wer=scores.get("WER"),
        cer=scores.get("CER"),
    )
    return demo_report(figures, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser, args = parse(argv)
    show_logs()
    try:
        configs = configure(args)
    except (OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    system = BaseSystem(**configs.arguments())
    stages = ["create_dataset", "infer", "measure"] if args.audio is None else ["infer"]
    try:
        results = system.run(stages)
    except SourceError as error:
        print(f"create_dataset: {error}", file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the rules of the report, on a terminal without UTF-8
    print(report(configs, results, args.audio))
    return 0


if __name__ == "__main__":
    sys.exit(main())
