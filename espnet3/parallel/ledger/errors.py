"""Errors about a run folder.

    LedgerError                  (ParallelError, RuntimeError)
    ├── ValueTypeError           (TypeError)   a result or an index that JSON cannot hold
    ├── FolderWriteError         (OSError)     the disk is full, the folder is read-only, ...
    ├── DamagedFolderError                     files that no run leaves behind
    ├── ChangedRunError                        another runner, config or index list than the folder's
    ├── IncompleteRunError                     a merge that would not hold every planned index
    ├── FolderInUseError                       another driver holds the folder's lease
    └── LeaseLostError                         this driver's lease was taken over

The second base lets code that only knows the standard library's types catch them too.
"""

from __future__ import annotations

from typing import Any

from espnet3.parallel.errors import ParallelError
from espnet3.parallel.messages import brief, shortened


class LedgerError(ParallelError, RuntimeError):
    """Base of all errors about a run folder."""


class ValueTypeError(LedgerError, TypeError):
    """A value that the declared JSON encoding does not hold."""

    def __init__(self, where: str, problem: str, index: Any = None) -> None:
        super().__init__(where, problem, index)
        self.where = where  # the place inside the result, such as `result["a"][3]`
        self.problem = problem
        self.index = index  # the item's, where it is known; None otherwise

    def _espnet3_text(self) -> str:
        item = "" if self.index is None else f"item {brief(self.index)}: "
        return f"{item}{self.where} {self.problem}"


class FolderWriteError(LedgerError, OSError):
    """A file of the run folder could not be written; what is whole on disk stays valid."""


class DamagedFolderError(LedgerError):
    """The folder holds something that no run leaves behind, and that cannot be repaired safely."""


def damaged(file: object, line: int, why: Exception) -> DamagedFolderError:
    """Return the error about a line that no run writes; line 0 is the whole file, and no file a value."""
    place = f"{file}, line {line}" if line else str(file or "a value")
    reason = str(why) if type(why) is ValueError else f"{type(why).__name__}: {why}"
    return DamagedFolderError(
        f"{place} is damaged, no run writes this: {reason:.300}. Copy the folder again from where it was made, or "
        "start anew with resume=False"
    )


class ChangedRunError(LedgerError):
    """The folder belongs to another runner, config or index list; the message shows the difference."""

    def __init__(self, folder: str, differences: list[str]) -> None:
        super().__init__(folder, differences)
        self.folder = folder
        self.differences = differences  # a line for each, "what: old -> new"

    def _espnet3_text(self) -> str:
        return (
            f"{self.folder} holds another run:\n  "
            + "\n  ".join(shortened(self.differences))
            + '\nIn code: resume="force" goes on and keeps the results of indices that are still in the list; '
            "resume=False moves the old run aside and starts anew; or take another output_dir. "
            f"A recipe's stage: remove {self.folder} to start anew, or set ESPNET3_RESUME=force to go on"
        )


class IncompleteRunError(LedgerError):
    """Some planned indices have neither a result nor a failure."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem  # the missing indices and their run folder
        self.advice = advice  # the fix

    def _espnet3_text(self) -> str:
        return f"{self.problem}. {self.advice}"


class FolderInUseError(LedgerError):
    """Another driver is at work in this folder; the message names its host, pid and start."""


class LeaseLostError(LedgerError):
    """Another driver took this folder over, because this one gave no sign of life for too long."""
