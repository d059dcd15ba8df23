"""The hooks that a runner's class overrides, and checks of the class; `shards.py` calls them.

A shard of a runner with files of its own calls its writer hooks:

    open_writers(shard_dir) ──> write_record(writers, result, state) for each ──> close_writers(writers, state)

Where a runner overrides one of `init_state`, `reduce_state` and `finalize_state`, the shard calls these three instead;
those of the base call the hooks above.

A runner may have one of `forward` and `batch_forward` alone. `batch_forward` alone: its `forward` is a batch of one.
`forward` alone and a batch size: beside ESPnet's own `espnet3.systems` an item of the run is a list of indices, as
ESPnet documents it for every runner; elsewhere the batch size has no effect.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from espnet3.parallel.errors import SignatureError
from espnet3.parallel.provenance import FUNCTION

if TYPE_CHECKING:
    from pathlib import Path


WRITER_HOOKS = ("open_writers", "write_record", "close_writers")
STATE_HOOKS = ("init_state", "reduce_state", "finalize_state")
_STATIC = ("forward", "batch_forward", *WRITER_HOOKS, *STATE_HOOKS)
_ITERATED = ("batch_forward", "open_writers")  # results of the others are not iterated over
_BASE = "espnet3.parallel.base_runner"  # the module of the hooks that a runner may override
MADE = "_espnet3_in_batches_of_one"  # on a `forward` that calls `batch_forward`
_OURS = "stages.py"  # in the folder of our own `espnet3.systems`, and not in that of ESPnet's


def is_default(runner: type, name: str) -> bool:
    """Return whether a runner's hook is that of the base."""
    hook = inspect.getattr_static(runner, name)
    return getattr(getattr(hook, "__func__", hook), "__module__", "") == _BASE


def writes_files(runner: type) -> bool:
    """Return whether a runner writes files of its own, by a writer hook, a state hook or `merge`."""
    return not all(is_default(runner, name) for name in (*WRITER_HOOKS, *STATE_HOOKS, "merge"))


def make_static(runner: Any) -> None:
    """Refuse functions with `self` among those that run on workers; make static what the class body only assigns.

    Such a function (`write_record = Other.write_record`) was written without `self`. A class with a `batch_forward`
    alone gets its `forward`.
    """
    if is_default(runner, "forward") and not is_default(runner, "batch_forward"):
        runner.forward = staticmethod(_in_batches_of_one(runner))
    for name in _STATIC:
        own = inspect.getattr_static(runner, name)
        if inspect.isfunction(own):  # plain, so a method: also one that a mixin brings
            if not _is_assigned(runner, name, own):
                raise SignatureError(
                    f"{runner.__qualname__}.{name} must be static: it runs on workers, where there is no self. "
                    f"Put @staticmethod above it and take what it needs from the env"
                )
            setattr(runner, name, staticmethod(own))
        func = getattr(own, "__func__", own)
        called = runner.__qualname__ if FUNCTION in vars(runner) else f"{runner.__qualname__}.{name}"
        why = ""
        if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
            why = "await what an `async def` returns. Call asyncio.run(...) in it"
        elif inspect.isgeneratorfunction(func) and name not in _ITERATED:
            why = "run what a function with `yield` returns. Return a list"
        if why:
            raise SignatureError(f"{called} must be a plain function: nothing would {why}")


def _is_assigned(runner: type, name: str, function: Any) -> bool:
    owner = next(base for base in runner.__mro__ if name in vars(base))
    made_here = (owner.__module__, f"{owner.__qualname__}.{name}")
    first = next(iter(inspect.signature(function).parameters), "")
    return (function.__module__, function.__qualname__) != made_here and first not in ("self", "cls")


def _in_batches_of_one(runner: Any) -> Callable[..., Any]:
    # workers find it by its name in the class, if that can be imported
    batch_forward = runner.batch_forward

    def forward(idx: Any, *args: Any, **env: Any) -> Any:
        from espnet3.parallel.engine.loop import Call  # as below: first runs start their workers before

        return Call(forward, lambda items: batch_forward(items, *args, **env)).batch([idx])[0]

    forward.__module__, forward.__qualname__ = runner.__module__, f"{runner.__qualname__}.forward"
    forward.__signature__ = inspect.signature(batch_forward)  # type: ignore[attr-defined]  # `inspect` reads its
    setattr(forward, MADE, True)
    return forward


def takes_lists(runner: type, batch_size: int | None) -> bool:
    """Return whether a runner's `forward` takes lists of indices; the module's docstring has the rule."""
    if batch_size is None or not is_default(runner, "batch_forward"):
        return False
    systems = find_spec("espnet3.systems")
    places = [] if systems is None else systems.submodule_search_locations or []
    return bool(places) and not any(os.path.exists(os.path.join(place, _OURS)) for place in places)


def in_lists(items: Sequence[Any], size: int) -> list[list[Any]]:
    """Cut items into lists of `size`; the last one may be shorter."""
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


def folder_entries(folder: Path, shard_subdir: str) -> dict[str, str]:
    """Return the env entries of a run folder: `output_dir` and `shard_subdir`, which together name it.

    `shard_subdir` is empty if the folder does not end with it, as in a detached run without an `output_dir`.
    """
    parts = type(folder)(shard_subdir).parts
    if not parts or folder.parts[-len(parts) :] != parts:
        return {"output_dir": str(folder), "shard_subdir": ""}
    return {"output_dir": str(type(folder)(*folder.parts[: -len(parts)])), "shard_subdir": shard_subdir}


def new_state(folder: Path, number: int) -> dict[str, Any]:
    """Return the first state of a shard."""
    return {"shard_id": number, "shard_dir": str(folder), "records": []}


def close_all(writers: Any) -> None:
    """Close every writer in the result of `open_writers`: one, or any nesting of lists, tuples, sets and mappings.

    A writer has a method `close`; other values (a path, a number) stay as they are. Each is closed once, in order, also
    after one that raises, and the first exception is raised then.
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

    The new file appears whole, so that others may read the name meanwhile.

    Args:
        shard_dirs: The folders that `merge` gets.
        relative_name: The file's name within each of them.
        out_path: The file to write; a missing folder is made.

    Returns:
        Whether any shard has the file. If none has, there is no `out_path` afterwards.

    Raises:
        OSError: A file cannot be read or written.
    """
    import shutil  # here: its compressors take longer to load than the rest of this module
    from pathlib import Path

    from espnet3.parallel.ledger.files import BY_UMASK, Draft

    out = Path(out_path)
    parts = [part for part in (Path(folder, relative_name) for folder in shard_dirs) if part.exists()]
    if not parts:
        out.unlink(missing_ok=True)
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with Draft(out, BY_UMASK) as draft:
        for part in parts:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, draft.file)
        draft.commit(durable=False)
    return True
