"""The run folder on disk: every outcome is in it before it is reported, and nothing is in it twice.

In: an index list, and lines of outcomes. Out: a folder, and the merged results read from it.

`values.py` and `lines.py` say what a result looks like, `identity.py` what makes two runs the same;
`folder.py` opens a folder, `session.py` is what the driver does with it, `split.py` its own files in it;
`scan.py` reads what all sessions wrote, `merge.py` puts it in order and proves it, `results.py` reads
that lazily; `lease.py` keeps a second driver out. Nothing here knows how the items are run.

Names are imported when they are used: a detached job, of which there may be thousands, needs a few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.ledger.errors import (
        ChangedRunError,
        DamagedFolderError,
        FolderInUseError,
        FolderWriteError,
        IncompleteRunError,
        LeaseLostError,
        LedgerError,
        ValueTypeError,
    )
    from espnet3.parallel.ledger.folder import open_run
    from espnet3.parallel.ledger.identity import Identity, identify
    from espnet3.parallel.ledger.lease import Lease
    from espnet3.parallel.ledger.lines import check_line, encode_line, read_line
    from espnet3.parallel.ledger.merge import Receipt, check_receipt, read_receipt
    from espnet3.parallel.ledger.results import Results
    from espnet3.parallel.ledger.session import OpenRun

_HOME = {
    "errors": [
        "ChangedRunError",
        "DamagedFolderError",
        "FolderInUseError",
        "FolderWriteError",
        "IncompleteRunError",
        "LeaseLostError",
        "LedgerError",
        "ValueTypeError",
    ],
    "folder": ["open_run"],
    "identity": ["Identity", "identify"],
    "lease": ["Lease"],
    "lines": ["check_line", "encode_line", "read_line"],
    "merge": ["Receipt", "check_receipt", "read_receipt"],
    "results": ["Results"],
    "session": ["OpenRun"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ChangedRunError",
    "DamagedFolderError",
    "FolderInUseError",
    "FolderWriteError",
    "Identity",
    "IncompleteRunError",
    "Lease",
    "LeaseLostError",
    "LedgerError",
    "OpenRun",
    "Receipt",
    "Results",
    "ValueTypeError",
    "check_line",
    "check_receipt",
    "encode_line",
    "identify",
    "open_run",
    "read_line",
    "read_receipt",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
