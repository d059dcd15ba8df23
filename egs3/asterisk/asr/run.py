#!/usr/bin/env python3
"""Run the stages of the recipe: create_dataset, collect_stats, train, infer, measure, compare.

    python egs3/asterisk/asr/run.py --stages all
    python egs3/asterisk/asr/run.py --parallel_config parallel_local parallel.n_workers=4
    python egs3/asterisk/asr/run.py --stages infer measure --limit 20 test_sets.prompts.min_words=5
    python egs3/asterisk/asr/run.py --stages infer --parallel_config parallel_slurm runner.async_mode=true
    python egs3/asterisk/asr/run.py --stages all --dry_run

A config is found by its path, or by its name in conf/. `key=value` overrides any key of the
configs that have it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The configs name the recipe's classes as src.* and dataset.*, whatever folder this is started in.
if (_HERE := str(Path(__file__).resolve().parent)) not in sys.path:
    sys.path.insert(0, _HERE)

from espnet3.systems.launch import build_parser, launch, show_results  # the path above comes first
from src.comparison import comparison_table
from src.report import metrics_table
from src.system import AsteriskSystem


def show(results: Mapping[str, Any]) -> None:
    """Print what was decoded, and the table of error rates."""
    show_results(results)
    if "measure" in results:
        print(metrics_table(results["measure"]))
    if "compare" in results:
        print(comparison_table(results["compare"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return the exit status."""
    return launch(
        AsteriskSystem,
        recipe_dir=Path(_HERE),
        argv=argv,
        parser=build_parser(AsteriskSystem, __doc__),
        show=show,
    )


if __name__ == "__main__":
    sys.exit(main())
