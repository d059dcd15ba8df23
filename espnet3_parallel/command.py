"""The start of the command `espnet3`, which is found also where another `espnet3` hides ours."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run the command line; where `espnet3.parallel` is not ours, say so and end with 1, but for `overlay`."""
    if sys.argv[1:2] == ["overlay"]:
        from espnet3_parallel.overlay import overlay

        overlay(sys.argv[2:], prog_name="espnet3 overlay")
    from espnet3_parallel.layer import findings, in_use

    layer = in_use()
    if not layer.ours:
        for finding in findings(layer):
            print(f"espnet3: {finding.text}", file=sys.stderr)
        sys.exit(1)
    import_module("espnet3.cli.main").main()
