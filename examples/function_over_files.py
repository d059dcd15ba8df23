"""A function over files: the words of every text file below a folder, counted on all cores."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from espnet3.parallel import run, set_parallel


def count_words(path: str, stop_words: set[str]) -> int:
    """Return how many words of a file are none of the stop words."""
    words = Path(path).read_text(encoding="utf-8").split()
    return sum(word.lower() not in stop_words for word in words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()

    files = sorted(str(path) for path in args.folder.rglob("*.txt"))
    set_parallel({"env": "local", "n_workers": args.workers})
    # a file that cannot be read is a record in its place, and the others have their counts
    counts = run(count_words, files, env={"stop_words": {"a", "an", "the"}}, on_error="record")
    for path, count in zip(files, counts, strict=True):
        print(path, count)
