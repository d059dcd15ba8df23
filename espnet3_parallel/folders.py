"""Does a worker see a folder as this process does? Each looks for a file that the other has written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to ask a worker about, by its absolute path: a worker may have other links."""

    path: str
    mark: str  # the name of a file in the folder

    @property
    def file(self) -> Path:
        """The file that is written here."""
        return Path(self.path, self.mark)

    @property
    def answer(self) -> Path:
        """The file that the worker writes."""
        return Path(self.path, f"{self.mark}.answer")


def existing(path: str) -> str:
    """Return a folder, or the nearest existing one above it."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


@contextmanager
def marked(paths: Sequence[str]) -> Iterator[list[Folder]]:
    """Keep a mark in each folder while the context lasts."""
    folders = [Folder(path, f".espnet3-doctor-{secrets.token_hex(8)}") for path in paths]
    try:
        for folder in folders:
            folder.file.write_text("")
        yield folders
    finally:
        for file in [file for folder in folders for file in (folder.file, folder.answer)]:
            with suppress(OSError):  # never written, or in a folder that has gone
                file.unlink()


def reply(folder: Folder) -> str:
    """On a worker: read the mark and write the answer; return the problem, or ""."""
    try:
        folder.file.read_text()
    except FileNotFoundError:
        if os.path.isdir(folder.path):
            return "the folder of that name there is another one: it lacks a file that was written here"
        return "there is no such folder there"
    except OSError as error:
        return f"it cannot be read there: {error.strerror}"
    try:
        folder.answer.write_text("")
    except OSError as error:
        return f"it can be read there, but not written to: {error.strerror}"
    return ""


def arrived(folder: Folder) -> str:
    """Return the problem of a worker's answer, or ""."""
    try:
        folder.answer.read_text()
    except OSError as error:
        return f"what a worker writes there does not arrive here: {error.strerror}"
    return ""
