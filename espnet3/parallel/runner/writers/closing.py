"""What the hooks of a runner with files of its own rarely need to say themselves: close all, and put parts together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.files import BY_UMASK, Draft


def close_all(writers: Any) -> None:
    """Close every writer in what `open_writers` returned: one, or any nesting of lists, tuples, sets and mappings.

    A writer is what has a method `close`; anything else (a path, a number) is let be. Each is closed once, in order,
    and all of them also where one raises.

    Raises:
        Exception: The first that a `close` raised.
    """
    first: BaseException | None = None
    for writer in _found(writers, set()):
        try:
            writer.close()
        except BaseException as error:  # the others hold unwritten lines as well
            first = first or error
    if first is not None:
        raise first


def _found(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    # first: a shelf is a mapping too; and a mapping may have its keys as attributes
    of = type(value) if isinstance(value, Mapping) else value
    if not isinstance(value, type) and callable(getattr(of, "close", None)):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _found(one, seen)
    elif isinstance(value, (list, tuple, AbstractSet)):
        for one in value:
            yield from _found(one, seen)


def concatenate_shard_files(
    shard_dirs: Iterable[str | os.PathLike[str]],
    relative_name: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
) -> bool:
    """Put a file of each shard's folder together, in the order given; a shard without it adds nothing.

    The new file is there whole or not at all, so that others may read it meanwhile.

    Args:
        shard_dirs: As `merge` is given them.
        relative_name: The file's name within each of them.
        out_path: The file to write; its folder is made where it is missing.

    Returns:
        Whether any shard has the file. If none has, there is no `out_path` afterwards.

    Raises:
        OSError: A file cannot be read or written.
    """
    import shutil  # here: its compressors take longer to load than the rest of this module

    out = Path(out_path)
    parts = [part for part in (Path(folder, relative_name) for folder in shard_dirs) if part.exists()]
    if not parts:
        out.unlink(missing_ok=True)
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with Draft(out, BY_UMASK) as draft:
        with draft.opened() as file:
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file)
        draft.commit(durable=False)
    return True
