"""Does a worker see a folder as this process does? Each looks for a file that the other has written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def existing(path: str) -> str:
    """Return a folder, or the nearest existing one above it."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


@contextmanager
def marked(paths: Sequence[str]) -> Iterator[list[Path]]:
    """Keep a file in each folder while the context lasts; by its absolute path: a worker may have other links."""
    marks = [Path(path, f".espnet3-doctor-{secrets.token_hex(8)}") for path in paths]
    try:
        for mark in marks:
            mark.write_text("")
        yield marks
    finally:
        for file in [*marks, *map(_answer, marks)]:
            with suppress(OSError):  # never written, or in a folder that has gone
                file.unlink()


def _answer(mark: Path) -> Path:
    return mark.with_suffix(".answer")


def reply(mark: Path) -> str:
    """On a worker: read a mark and write the answer; return the problem, or ""."""
    try:
        mark.read_text()
    except FileNotFoundError:
        if mark.parent.is_dir():
            return "the folder of that name there is another one: it lacks a file that was written here"
        return "there is no such folder there"
    except OSError as error:
        return f"it cannot be read there: {error.strerror}"
    try:
        _answer(mark).write_text("")
    except OSError as error:
        return f"it can be read there, but not written to: {error.strerror}"
    return ""


def arrived(mark: Path) -> str:
    """Return the problem of a worker's answer, or ""."""
    try:
        _answer(mark).read_text()
    except OSError as error:
        return f"what a worker writes there does not arrive here: {error.strerror}"
    return ""
