"""Running out of memory in a batch: how it is known, and how the memory comes back before a smaller one is tried."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass

from espnet3.parallel.engine.exceptions import describe_error

# torch.OutOfMemoryError and cupy's, tensorflow's
_NAMES = {"OutOfMemoryError", "ResourceExhaustedError"}
# older torch, and its allocator of host memory; XLA
_WORDS = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED")


@dataclass(slots=True)
class Fit:
    """The size of the batches that fit into this process's memory, once one did not.

    Attributes:
        size: Most items of a batch; None: no batch has been too large.
    """

    size: int | None = None

    def of(self, wanted: int) -> int:
        """Return the size that batches have."""
        return wanted if self.size is None else min(wanted, self.size)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of a GPU or of this machine, was not enough."""
    if isinstance(error, MemoryError) or _NAMES & {kind.__name__ for kind in type(error).__mro__}:
        return True
    return isinstance(error, RuntimeError) and any(word in describe_error(error)[1] for word in _WORDS)


def give_back(error: BaseException) -> None:
    """Free what the frames of a failed batch hold, and what torch keeps of a GPU's memory for later."""
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
