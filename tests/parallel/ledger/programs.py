"""Programs that tests start as processes of their own, and talk to in lines."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def program(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a function of this module; whatever happens, it is gone afterwards."""
    command = [sys.executable, "-m", "tests.parallel.ledger.programs", name, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], line: object) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    """Return the next line a program says; empty once it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(*words: object) -> None:
    print(*words, flush=True)


# --- the programs ---


def contend() -> None:
    """For each folder it is given: try to take its lease, say how it went, keep it until asked to go on."""
    from espnet3.parallel.ledger.errors import FolderInUseError
    from espnet3.parallel.ledger.lease import Lease

    say("ready")
    for line in sys.stdin:
        lease = Lease(line.strip())
        try:
            lease.acquire(f"run of {os.getpid()}")
        except FolderInUseError as error:
            say("refused", error)
        else:
            say("won", os.getpid())
        sys.stdin.readline()
        lease.release()
        say("released")


def merge_many(path: str, n: str) -> None:
    """Write a run of n results in a scattered order, merge it, read it; say what memory and file grew by."""
    from espnet3.parallel.ledger.lines import encode_line
    from espnet3.parallel.ledger.merge import Results
    from tests.parallel.ledger.making import begin

    count = int(n)
    filler = "x" * 300
    with begin(Path(path), range(count)) as run:
        for start in range(0, count, 1000):  # blocks in another order than the list's
            first = (start * 7) % count
            run.append([encode_line(p, p, [p, filler]) for p in range(first, first + 1000)])
    before = peak()
    with begin(Path(path), range(count)) as run:
        run.merge()
    results = Results(path)
    in_order = all(value[0] == place for place, value in enumerate(results))
    ends = [results[-1][0], results[count // 2][0]]
    size = (Path(path) / "results.jsonl").stat().st_size
    say(json.dumps({"grown": peak() - before, "size": size, "in_order": in_order, "ends": ends}))


def peak() -> int:
    """Return the most memory this process ever had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def die_with_lease(path: str) -> None:
    """Take a lease, say so, and wait to be killed."""
    from espnet3.parallel.ledger.lease import Lease

    lease = Lease(path)
    lease.acquire("a dead run")
    say("holding", os.getpid())
    sys.stdin.readline()


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[2:]
    globals()[sys.argv[1]](*arguments)
