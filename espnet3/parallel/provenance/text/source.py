"""Files of the user's, taken apart, and the hashes of their parts."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from espnet3.parallel.provenance.text.syntax import REST, Statement, digest, statements

_MOST_OF_ONE = 8  # definitions of one name


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the user's, taken apart."""

    statements: tuple[Statement, ...]

    @staticmethod
    def read(file: str) -> Source:
        """Read a file; one that is no Python source (a compiled module) counts by its bytes."""
        return _parse(file, stamp_of(file))


def stamp_of(file: str) -> tuple[int, ...]:
    """Return what is another where a file has been written since: what is known of its text is kept under it."""
    stat = os.stat(file)
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=2048)
def _parse(file: str, stamp: tuple[int, ...]) -> Source:
    raw = Path(file).read_bytes()
    try:
        return Source(tuple(statements(raw)))
    except (
        SyntaxError,
        ValueError,
        RecursionError,
    ):  # a compiled module, or a file that nobody can import now
        part = (REST, digest(raw.decode("latin-1")))
        return Source((Statement(frozenset(), frozenset(), frozenset(), (), (part,)),))


def all_parts(source: Source) -> dict[str, str]:
    """Return the hash of each part of a module that an import runs."""
    return parts_by_name(each for each in source.statements if not each.guarded)


def parts_by_name(found: Iterable[Statement]) -> dict[str, str]:
    """Return the hash of each part; parts of the same name (a function defined twice) make one."""
    return {name: _joint(ones) for name, ones in _by_name(found).items()}


def combinations_of(source: Source, names: set[str]) -> dict[str, set[str]]:
    """Return what `parts_by_name` may give for parts that a file has several of, where only some are taken."""
    return {
        name: {_joint(some) for size in range(len(ones)) for some in combinations(ones, size + 1)}
        for name, ones in _by_name(source.statements).items()
        if name in names and 1 < len(ones) <= _MOST_OF_ONE
    }


def _by_name(found: Iterable[Statement]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for statement in found:
        for name, one in statement.parts:
            texts.setdefault(name, []).append(one)
    return texts


def _joint(ones: Sequence[str]) -> str:
    return ones[0] if len(ones) == 1 else digest("/".join(ones))


def one_hash(parts: dict[str, str]) -> str:
    """Return one hash for all parts."""
    return digest("/".join(f"{name} {one}" for name, one in sorted(parts.items())))
