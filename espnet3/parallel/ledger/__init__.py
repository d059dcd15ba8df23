"""The run folder on disk: every outcome is in it before it is reported, and nothing is in it twice.

In: an index list, and lines of outcomes. Out: a folder, and the merged results read from it.

`values.py` and `lines.py` hold the format of a result, `identity.py` the sameness of two runs; `folder.py` opens a
folder and serves the driver in it, `split.py` has the driver's own files; `scan.py` reads the files of all
sessions, `merge.py` puts them in order and proves them, `results.py` reads the merged ones lazily; `lease.py` keeps a
second driver out. Nothing here knows how the items are run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.ledger.merge import check_receipt
    from espnet3.parallel.ledger.results import Results

__all__ = ["Results", "check_receipt"]
_HOME = {"Results": "results", "check_receipt": "merge"}  # imported when used: a detached job needs neither


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
