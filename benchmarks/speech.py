"""`python -m benchmarks.speech`: the recipe decodes its whole corpus with 1 and with 2 workers, in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import ROOT, report, tables

RUN = ROOT / "egs3" / "asterisk" / "asr" / "run.py"
PREPARE = ("--stages", "create_dataset")
DECODE = ("--stages", "infer", "--parallel_config", "parallel_local")
OVERRIDES = ("parallel.n_workers={workers}", "inference_dir={folder}")
"""What is put behind it; `{folder}` is a fresh one each time, so that nothing is resumed."""


def stage(arguments: Sequence[str]) -> float:
    """Run the recipe with these arguments and return its wall seconds.

    Raises:
        subprocess.CalledProcessError: The recipe failed; what it said is on the terminal.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    begin = time.perf_counter()
    subprocess.run([sys.executable, str(RUN), *arguments], env={**os.environ, "PYTHONPATH": path}, check=True)
    return time.perf_counter() - begin


def decode(workers: int, overrides: Sequence[str]) -> float:
    """Decode the corpus once and return the wall seconds."""
    with TemporaryDirectory(prefix="espnet3-speech-") as folder:
        return stage([*DECODE, *(text.format(workers=workers, folder=folder) for text in overrides)])


def main() -> int:
    """Measure, print the ratio, write the figures."""
    parser = report.arguments("speech", __doc__, rounds=3, workers=[1, 2])
    parser.add_argument("--limit", type=int, help="only the first utterances: to try it, not for figures")
    args = parser.parse_args()
    if not RUN.is_file():
        parser.error(f"there is no {RUN}")
    overrides = [*OVERRIDES, *(["--limit", str(args.limit)] if args.limit else [])]

    stage(PREPARE)
    seconds: dict[int, list[float]] = {n: [] for n in args.workers}
    for number in range(1, args.rounds + 1):
        for n in args.workers:
            seconds[n].append(decode(n, overrides))
            print(
                f"[{number}/{args.rounds}] {n} workers: {seconds[n][-1]:.1f} s", file=sys.stderr, flush=True
            )

    one = median(seconds[args.workers[0]])
    head = ["workers", "median s", "min .. max", f"times faster than {args.workers[0]}"]
    rows = [
        [str(n), tables.number(median(s)), f"{min(s):.1f} .. {max(s):.1f}", tables.number(one / median(s))]
        for n, s in seconds.items()
    ]
    print(tables.grid(head, rows))
    report.write(args.out, ["pocketsphinx", "distributed"], limit=args.limit, seconds=seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
