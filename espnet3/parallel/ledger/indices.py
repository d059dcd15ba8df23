"""A run's index list as the ledger sees it: its length, its hash, and the JSON of each index."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from espnet3.parallel.ledger.errors import ValueTypeError
from espnet3.parallel.ledger.lines import index_json
from espnet3.parallel.messages import brief

_CHUNK = 1 << 16
_TWICE = -1
_SHOWN = 3  # indices of a list that are written out


def hash_indices(items: Sequence[Any]) -> str:
    """Return a hash of the indices and their order; a range and the equal list have the same."""
    digest = _hash_integers(items)
    if digest is None:
        plain = hashlib.sha256(b"json\n")
        for at, item in enumerate(items):
            plain.update(_held(at, item) + b"\n")
        digest = plain.hexdigest()
    return digest


def _held(at: int, item: Any) -> bytes:
    """Return an index as JSON; an error names it and its place."""
    try:
        return index_json(item)
    except ValueTypeError as error:
        kind, why = type(item).__qualname__, error.problem.partition(":")[0]  # without the advice for results
        raise ValueTypeError(
            f"indices[{at}] = {brief(item, 80)}",
            f"({kind}) is no index for a run folder, whose files are JSON: give numbers, text, lists or dicts of "
            f"them, such as range(len(items)), and keep the objects in the env ({error.where} {why})",
        ) from None


def _hash_integers(items: Sequence[Any]) -> str | None:
    """Return the hash of a list of 64-bit integers (10 million in half a second); None for any other list."""
    digest = hashlib.sha256(b"int64\n")
    numpy = sys.modules.get("numpy")
    for at in range(0, len(items), _CHUNK):
        part = items[at : at + _CHUNK]
        if not isinstance(part, range):
            kinds = set(map(type, part))
            if not all(
                kind is int or (numpy is not None and issubclass(kind, numpy.integer)) for kind in kinds
            ):
                return None
        try:
            numbers = array("q", part)
        except OverflowError:
            return None
        if sys.byteorder == "big":
            numbers.byteswap()
        digest.update(numbers)
    return digest.hexdigest()


def describe_indices(items: Sequence[Any]) -> dict[str, Any]:
    """Describe an index list for `run.json`: count, hash, its ends for people, and the numbers of a range."""
    n = len(items)
    ends = [
        _held(at, items[at]).decode() for at in sorted({*range(min(n, _SHOWN)), *range(max(0, n - 1), n)})
    ]
    whole = {"range": [items.start, items.stop, items.step]} if isinstance(items, range) else {}
    return {"count": n, "sha256": hash_indices(items), "shown": ends, **whole}


def list_shown(indices: dict[str, Any]) -> str:
    """Return the text of a list that `describe_indices` has described, for messages."""
    ends = indices.get("shown") or []
    count = indices.get("count")
    if not ends:
        return f"{count} indices"
    text = ", ".join(ends) if len(ends) == count else f"{', '.join(ends[:-1])} ... {ends[-1]}"
    return f"{count} indices ({text if len(text) <= 120 else text[:117] + '...'})"


class Places:
    """Where the lines of a split belong in the present index list."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self._by_index: dict[bytes, int] | None = None

    def head(self, key: bytes) -> Callable[[int], bytes]:
        """Return the function from a planned position to how a line for it begins."""
        items = self.items
        if isinstance(items, range):
            template = b'{"n":%%d,"index":%%d,"%b":' % key
            return lambda position: template % (position, items[position])
        template = b'{"n":%%d,"index":%%b,"%b":' % key
        return lambda position: template % (position, index_json(items[position]))

    def moved(self) -> Callable[[bytes], int | None]:
        """Return the lookup for a split of another list: by index, None for a missing one.

        An index that stands in the list twice is computed again: only the other list knows the places of its results.
        """
        if self._by_index is None:
            self._by_index = {}
            for position, item in enumerate(self.items):
                index = index_json(item)
                self._by_index[index] = _TWICE if index in self._by_index else position
        by_index = self._by_index

        def place(index: bytes) -> int | None:
            position = by_index.get(index, _TWICE)
            return None if position == _TWICE else position

        return place
