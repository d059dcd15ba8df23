"""The source files a run was submitted with: their hashes, so that a later edit is noticed."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def source_hashes(files: Sequence[str]) -> dict[str, str]:
    """Return the hash of each file, and of the modules loaded here from the same folders."""
    folders = {os.path.realpath(os.path.dirname(file)) for file in files}
    found = dict.fromkeys(os.path.abspath(file) for file in files)
    real = functools.cache(os.path.realpath)  # hundreds of modules are in few folders
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and real(os.path.dirname(file)) in folders:
            found[os.path.abspath(file)] = None
    return {file: digest for file in sorted(found) if (digest := file_hash(file))}


def file_hash(file: str) -> str:
    """Return the hash of a file; empty where it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
