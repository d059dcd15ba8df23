"""Files that are there whole or not at all, and their fingerprints; ids and fields of a dataset's items."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from espnet3.parallel.ledger.files import BY_UMASK, Draft, leftovers


def write_atomic(
    path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], *, sole: bool = True
) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it into place.

    A reader sees the old content or the new one, never a part; a failed writer leaves `path` as
    it was, and one that is killed leaves its temporary file, which the next one removes.

    `sole` says that no other process writes this file meanwhile. False removes nothing, and looks for nothing, which
    takes longer the more files the folder has: see `remove_leftovers`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if sole:
        remove_leftovers(path.parent, path.name)
    with Draft(path, BY_UMASK) as draft:
        write(draft.file)
        draft.commit()


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text with Unix line ends on every platform, whole or not at all."""
    write_atomic(path, lambda file: file.write(text.encode("utf-8")))


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove the temporary files of killed writers from a folder without writers, by a pattern of names."""
    for path in leftovers(folder, name):
        path.unlink(missing_ok=True)


def places_of(ids: Iterable[Any], named: str) -> dict[str, int]:
    """Return the place of each id, counted from 0; `named` is what the places are called, such as "rows"."""
    places: dict[str, int] = {}
    for place, each in enumerate(ids):
        first = places.setdefault(str(each), place)
        if first != place:
            raise ValueError(f"the id {str(each)!r} is there twice, in {named} {first} and {place}")
    return places


def utterance_id(value: Any) -> str:
    """Return an id as text: one word, since white space would end it within a line."""
    text = str(value)
    if text.split() != [text]:
        raise ValueError(f"utterance id {text!r} is empty or holds whitespace; replace it, such as by '_'")
    return text


def answers(
    model: Any, items: Sequence[Any], keys: Sequence[str], settings: Mapping[str, Any], *, lists: bool
) -> Any:
    """Return what a model says of the fields `keys` of some items: a list, or its own answer to lists of all.

    It is given lists where its `supports_batch`, or else `lists`, says so, and several items are there.
    """
    for key in keys:
        for item in items:
            if key not in item:
                there = ", ".join(map(repr, item))
                raise KeyError(f"Input key {key!r} not found in dataset item (it has {there})")
    if len(items) > 1 and getattr(model, "supports_batch", lists):
        return model(**{key: [item[key] for item in items] for key in keys}, **settings)
    return [model(**{key: item[key] for key in keys}, **settings) for item in items]


def check_each(found: Any, n: int, named: str) -> None:
    """Check that the answer to lists of `n` items is a list with an entry for each; `named` is who has answered."""
    got = len(found) if isinstance(found, (list, tuple)) else f"a {type(found).__name__}"
    if got != n:
        raise ValueError(
            f"{named} was given lists of {n} items and returned {got}: return a list with an entry for each, or set "
            "supports_batch = False on it"
        )


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the hex SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
