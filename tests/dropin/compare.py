"""Two output folders of a recipe: what differs by a byte, and what only one of them has.

What a layer keeps for itself (shards, manifests, logs) is not compared.
"""

from collections.abc import Iterator
from pathlib import Path

# Of a layer, or of the day.
OWN = {
    "manifest.json",
    "run.json",
    "indices.json",
    "results.jsonl",
    "errors.jsonl",
    "events.jsonl",
    "receipt.json",
    "detached",
}


def outputs(folder: Path) -> dict[str, Path]:
    """Return the files that a stage wrote for its user, by their path inside the folder."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(_files(folder))}


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if (
            path.name in OWN
            or path.name.startswith((".", "split.", "session.", "lease."))
            or path.suffix == ".log"
        ):
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def differences(theirs: Path, ours: Path) -> list[str]:
    """Return a sentence for each file that differs or that only one of two folders has."""
    first, second = outputs(theirs), outputs(ours)
    found = [f"{name}: only with its own layer" for name in first.keys() - second.keys()]
    found += [f"{name}: only with our layer" for name in second.keys() - first.keys()]
    if not first:
        found.append(f"{theirs} holds no output")
    found += [
        f"{name}: {len(one)} and {len(two)} bytes, which differ"
        for name in first.keys() & second.keys()
        if (one := first[name].read_bytes()) != (two := second[name].read_bytes())
    ]
    return sorted(found)
