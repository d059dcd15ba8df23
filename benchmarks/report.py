"""What single benchmarks share: arguments, a process for each point, a watch over memory, the file of figures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import OUT, ROOT, machine, memory


def arguments(name: str, doc: str | None, **numbers: int | float | list[Any]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark: an option for each number, or list of them, with its default, and `--out`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc)
    for option, default in numbers.items():
        is_list = isinstance(default, list)
        kind = type(default[0] if isinstance(default, list) else default)
        more: dict[str, Any] = {"nargs": "+"} if is_list else {}
        parser.add_argument(f"--{option}", type=kind, default=default, help="default %(default)s", **more)
    parser.add_argument("--out", type=Path, default=OUT / f"{name}.json", help="default %(default)s")
    return parser


def write(out: Path, packages: Iterable[str], **content: Any) -> None:
    """Write figures, with the machine and the versions of packages."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps({"schema": 1, "machine": machine.describe(packages), **content}, indent=1) + "\n"
    )
    print(f"written: {out}", file=sys.stderr)


def child(module: str, *words: object) -> Any:
    """Return what a benchmark prints last, as JSON, in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{' '.join(command[2:])}: measured", file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each way says in each round; each round begins with another one."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        names = [*ways][number % len(ways) :] + [*ways][: number % len(ways)]
        for name in names:
            taken[name].append(ways[name]())
            print(f"[{number + 1}/{rounds}] {name}: {taken[name][-1]:.3f}", file=sys.stderr, flush=True)
    return taken


def spread(values: Sequence[float]) -> str:
    """Write the least and the greatest value."""
    return f"{min(values):.2f} .. {max(values):.2f}"


def plot(path: Path, axis: str, titles: Sequence[str], lines: Mapping[str, Sequence[Sequence[float]]]) -> int:
    """Draw a panel for each title: lines of points (x, a value for each panel) by name; 1 without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install -r benchmarks/requirements.txt", file=sys.stderr)
        return 1
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(titles), figsize=(5 * len(titles), 4), squeeze=False)
    for k, (axes, title) in enumerate(zip(panels[0], titles, strict=True)):
        for name, points in lines.items():
            ordered = sorted(points)
            axes.plot([p[0] for p in ordered], [p[k + 1] for p in ordered], marker="o", label=name)
        least, most = axes.dataLim.intervalx
        axes.set(title=title, xlabel=axis, xscale="log" if most > 10 * least else "linear")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)
    return 0


@contextmanager
def sampled(look: Callable[[], float], pause: float) -> Iterator[list[float]]:
    """Collect a function's values during a block of code, with a pause of so many seconds between them."""
    seen, over = list[float](), threading.Event()

    def watch() -> None:
        while not over.wait(pause):
            seen.append(look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def watched(job: Callable[[], Any]) -> dict[str, float]:
    """Do something; return its seconds, and this process's bytes before and at most."""
    before, begin = memory.resident(), time.perf_counter()
    with sampled(memory.resident, 0.02) as seen:
        job()
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "before_bytes": before, "peak_bytes": max([*seen, memory.resident()])}
