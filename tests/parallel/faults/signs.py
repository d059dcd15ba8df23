"""Signs that items give: light to import, as each new worker does."""

import os
from pathlib import Path


def tell(path: str | Path, text: str = "") -> None:
    """Write a line into a `Mailbox`, from any process; whole even if many write at once."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, f"{text or os.getpid()}\n".encode())
    os.close(fd)


def once(path: str | Path) -> bool:
    """Say True to the first process that asks about this path, False to all later ones."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
