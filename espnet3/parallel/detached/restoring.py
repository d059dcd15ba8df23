"""A runner made again from its run folder, for a process that did not submit the run."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.code import load
from espnet3.parallel.detached.layout import RUNNER, Layout
from espnet3.parallel.ledger.errors import LedgerError
from espnet3.parallel.ledger.values import decode, encode
from espnet3.parallel.runner.writers.hooks import folder_entries


def runner_attributes(runner: Any) -> dict[str, Any]:
    """Return those attributes of a runner that JSON can hold, for a `merge` in another process."""
    attributes = {}
    for name, value in vars(runner).items():
        try:
            attributes[name] = encode(value, name)
        except LedgerError:  # the provider, for one: a merge that needs it says so itself
            continue
    return attributes


def restored_runner(layout: Layout) -> Any:
    """Make a run's runner again, as far as its `merge` may need it: its class and its plain attributes."""
    spec = layout.template()
    sys.path.extend(entry for entry in spec.surroundings.sys_path if entry not in sys.path)
    cls: Any = load(spec.runner)
    runner = cls.__new__(cls)  # its own constructor may want what only the submitting process has
    for name, value in layout.read(RUNNER).items():
        setattr(runner, name, decode(value, layout.folder / RUNNER))
    return runner


def finishing_runner(layout: Layout, runner: Any) -> Any:
    """Return a runner for a run's `merge` or `write_outputs`; its `output_dir` and `shard_subdir` name the folder."""
    runner = restored_runner(layout) if runner is None else copy.copy(runner)
    # whatever folder the submitter was in
    entries = folder_entries(layout.run, runner.shard_subdir)
    runner.output_dir, runner.shard_subdir = Path(entries["output_dir"]), entries["shard_subdir"]
    return runner
