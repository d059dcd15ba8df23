"""Two output folders of a recipe: what differs, and what only one of them has.

Texts are compared by their bytes, statistics by their numbers: counts exactly, sums within 1e-6 of their size, since
shards add up in another order. What a layer keeps for itself (shards, manifests, logs) is not compared.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy

RTOL = 1e-6
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
    for name in first.keys() & second.keys():
        found += _different(name, first[name], second[name])
    return sorted(found)


def _different(name: str, first: Path, second: Path) -> list[str]:
    one, two = first.read_bytes(), second.read_bytes()
    if one == two:
        return []
    if first.suffix != ".npz":
        return [f"{name}: {len(one)} and {len(two)} bytes, which differ"]
    return [f"{name}: {what}" for what in _different_numbers(one, two)]


def _different_numbers(one: bytes, two: bytes) -> list[str]:
    if not (zipfile.is_zipfile(io.BytesIO(one)) and zipfile.is_zipfile(io.BytesIO(two))):
        return ["not an archive of arrays"]
    first, second = numpy.load(io.BytesIO(one)), numpy.load(io.BytesIO(two))
    if sorted(first.files) != sorted(second.files):
        return [f"arrays {first.files} and {second.files}"]
    found = []
    for key in first.files:
        a, b = first[key], second[key]
        exact = key == "count"
        if a.shape != b.shape or not (
            numpy.array_equal(a, b) if exact else numpy.allclose(a, b, rtol=RTOL, atol=0)
        ):
            found.append(f"{key} differs")
    return found
