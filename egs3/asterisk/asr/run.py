#!/usr/bin/env python3
"""Run the stages of the recipe: create_dataset, infer, measure.

    python egs3/asterisk/asr/run.py --stages create_dataset infer measure
    python egs3/asterisk/asr/run.py --parallel_config parallel_local parallel.n_workers=4
    python egs3/asterisk/asr/run.py --stages infer measure --limit 20 test_sets.prompts.min_words=5
    python egs3/asterisk/asr/run.py --stages infer --parallel_config parallel_slurm runner.async_mode=true

A config is found by its path, or by its name in conf/. `key=value` overrides any key of the
configs that have it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# The configs name the recipe's classes as src.* and dataset.*, whatever folder this is started in.
if (_HERE := str(Path(__file__).resolve().parent)) not in sys.path:
    sys.path.insert(0, _HERE)

from dataset.builder import SourceError  # the path above comes first
from espnet3.parallel import DetachedRun
from espnet3.systems.base.system import BaseSystem
from src.configs import load_configs
from src.logs import show_logs
from src.report import metrics_table


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line; overrides may stand anywhere in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        default=list(BaseSystem.stages),
        metavar="STAGE",
        help=", ".join(BaseSystem.stages),
    )
    parser.add_argument("--inference_config", default="conf/inference.yaml", metavar="CONFIG")
    parser.add_argument("--metrics_config", default="conf/metrics.yaml", metavar="CONFIG")
    parser.add_argument(
        "--parallel_config",
        metavar="CONFIG",
        help="for example parallel_local; without it, this process does all",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="decode only the first N utterances of each test set"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args(argv)
    args.overrides += [word for word in args.stages if "=" in word]
    args.stages = [word for word in args.stages if "=" not in word]
    if args.limit is not None:
        args.overrides.append(f"limit={args.limit}")
    return parser, args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return the exit status."""
    parser, args = parse(argv)
    show_logs()
    try:
        BaseSystem.check_stages(args.stages)
        configs = load_configs(
            args.inference_config, args.metrics_config, args.parallel_config, args.overrides
        )
        system = BaseSystem(inference_config=configs.inference, metrics_config=configs.metrics)
        system.check_jobs(args.stages)
    except (FileNotFoundError, TypeError, ValueError) as error:
        parser.error(str(error))
    try:
        results = system.run(args.stages)
    except SourceError as error:
        print(f"create_dataset: {error}", file=sys.stderr)
        return 1
    for name, result in results.get("infer", {}).items():
        if isinstance(result.run, DetachedRun):
            print(f"{name}: {result.items} utterances in {len(result.run)} jobs, {result.folder}")
            continue
        counts = f"{result.items} utterances, {result.failed} failed"
        print(f"{name}: {counts}, {result.seconds:.1f} s, {result.folder}")
    if "measure" in results:
        print(metrics_table(results["measure"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
