"""The workloads as a table: what runs, over how many items, which figures come out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import work
from benchmarks.work import Work, env

FULL_TIMEOUT = 600.0
FAULT_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a measurement: its key, its unit, and whether less of it is better."""

    key: str
    unit: str
    lower_is_better: bool = True


PER_ITEM = Figure("us_per_item", "µs/item")
DRIVER_BYTES = Figure("driver_bytes_per_item", "driver bytes/item")
EFFICIENCY = Figure("efficiency", "ideal / (2 x wall)", lower_is_better=False)
MB_PER_S = Figure("mb_per_s", "MB/s", lower_is_better=False)
FIRST_RESULT = Figure("first_result_s", "s from process start to first result")
SECOND_CALL = Figure("second_call_ms", "ms, the same call again")
MEMORY = Figure("mib", "MiB of all processes")
CALLS = Figure("calls_ms", "ms, 20 calls of 8 items")
CLOSE = Figure("close_s", "s, the close call")
EXIT = Figure("exit_s", "s from last result to process gone")
RESULTS = Figure("results", "right results", lower_is_better=False)
FAULT_SECONDS = Figure("seconds", "s to an answer or an error")
COMPLETE = "complete"  # an outcome of W6: the run lost nothing but the poison, and said so


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table of workloads."""

    name: str  # what `--workloads` may name, alone or by its prefix ("W3" is all of "W3-...")
    title: str  # one line for people
    measure: str  # which function of `benchmarks.measures` takes the figures
    work: Work  # the run
    figures: tuple[Figure, ...]  # what comes out
    ideal: float = 0.0  # CPU seconds of all items together, where the figure needs it
    only_hinted: bool = False  # run by the systems that take a cost hint
    poison: int | None = None  # the index that dies in W6; its name must come out in the error
    timeout: float = FULL_TIMEOUT  # seconds after which the measurement counts as hanging

    @property
    def workload(self) -> str:
        """The workload this case belongs to: "W3" for "W3-first"."""
        return self.name.split("-")[0]


def table(quick: bool = False) -> list[Case]:
    """Return every case, in full or in the sizes of `--quick`."""
    small, large = (2_000, 50_000) if quick else (10_000, 1_000_000)
    spins = 500 if quick else 5_000
    payloads = 200 if quick else 2_000
    return [
        _empty("W1-small", small),
        _empty("W1-large", large),
        Case(
            "W2",
            f"{spins:,} items of 1 ms CPU",
            "efficiency",
            Work(work.spin_1ms, spins, pieces=128),
            (EFFICIENCY,),
            ideal=spins * 0.001,
        ),
        *_skewed(400 if quick else 2_000, 0.06 if quick else 0.3),
        Case(
            "W4",
            f"{payloads:,} results of 100 KB",
            "bandwidth",
            Work(work.payload, payloads, pieces=500),
            (MB_PER_S,),
        ),
        Case(
            "W5",
            "start and stop",
            "start_stop",
            Work(work.where, 1),
            (FIRST_RESULT, SECOND_CALL, MEMORY, CALLS, CLOSE, EXIT),
        ),
        Case(
            "W5-env",
            "start with an env that takes 1 s to build",
            "start_stop",
            Work(work.where_scaled, 1, env("slow", seconds=1.0, scale=1)),
            (FIRST_RESULT,),
        ),
        *_faults(200 if quick else 1_000, 10.0 if quick else FAULT_TIMEOUT),
    ]


def _empty(name: str, n: int) -> Case:
    return Case(
        name, f"an empty function, {n:,} items", "rate", Work(work.empty, n), (PER_ITEM, DRIVER_BYTES)
    )


def _skewed(n: int, long: float) -> list[Case]:
    cases = []
    for hint in (False, True):
        for place in ("first", "last"):
            shape = {"n": n, "n_long": 5, "long": long, "mean": 0.002, "where_long": place}
            seconds = tuple(work.durations(n, 5, long, 0.002, place))
            title = f"{n:,} items, mean 2 ms, five of {long * 1000:.0f} ms {place}"
            cases.append(
                Case(
                    f"W3-{place}-hint" if hint else f"W3-{place}",
                    f"{title}, with a cost hint" if hint else title,
                    "efficiency",
                    Work(
                        work.spin_for, n, env("durations", **shape), seconds if hint else None, pieces=1_000
                    ),
                    (EFFICIENCY,),
                    ideal=sum(seconds),
                    only_hinted=hint,
                )
            )
    return cases


def _faults(n: int, timeout: float) -> list[Case]:
    index = n * 6 // 10 + 17  # in the second half, and no number that an error message holds by chance
    rows = [
        ("W6-killed", "one worker killed once", work.killed_once, None),
        ("W6-poison", f"item {index} always segfaults", work.poison, index),
    ]
    return [
        Case(
            name,
            f"{n:,} items of 2 ms, {what}",
            "faults",
            Work(item, n, env("plain", index=index), pieces=64),
            (RESULTS, FAULT_SECONDS),
            poison=poison,
            timeout=timeout,
        )
        for name, what, item, poison in rows
    ]


def select(names: list[str] | None, quick: bool) -> list[Case]:
    """Return the cases that `names` picks (all of them for None).

    Raises:
        ValueError: A name picks nothing.
    """
    cases = table(quick)
    if names is None:
        return cases
    unknown = [n for n in names if not any(n in (c.name, c.workload) for c in cases)]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(c.name for c in cases)}")
    return [c for c in cases if c.name in names or c.workload in names]
