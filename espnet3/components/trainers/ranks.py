"""The processes of a training: Lightning starts the script again in each further one, and `srun` in all of them."""

from __future__ import annotations

import os

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK")  # of torchrun, and of Lightning's own processes


def is_first_process() -> bool:
    """Whether this is the process that does everything else too: not one that was started for a training alone."""
    if os.environ.get("SLURM_STEP_ID", "").isdigit():  # started by srun: the batch script itself has none
        return os.environ.get("SLURM_PROCID", "0") == "0"
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def started_together() -> str:
    """Return what has started all processes of this program at once, `srun` or `torchrun`; empty: nothing has.

    Lightning's own further processes are none of these: they start where the training begins.
    """
    step = os.environ.get("SLURM_STEP_ID", "").isdigit()
    if step and _number("SLURM_STEP_NUM_TASKS") > 1:
        return "srun"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ and _number("WORLD_SIZE") > 1 else ""


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0
