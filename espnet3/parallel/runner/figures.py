"""The figures of a run in words: what it is doing now, and what it has done."""

from __future__ import annotations

from espnet3.parallel.messages import counted
from espnet3.parallel.records import SHORT_WORK, RunSummary, Tally

_COLD = 60.0  # seconds of work after which a rate is shown though some worker has not finished an item
_SETTLED = 1.0  # seconds after the first worker within which those of one machine come
_SLOWER = 1.1  # times as long as one worker: less is within what can be told
_WAITED = 0.5  # share of the items' time without the processor above which that is said
_WORTH_TELLING = 1.0  # seconds: nobody changes a configuration for less
_PART = 0.1  # share of the time lost above which its cause is named


def rate_text(items: int, seconds: float) -> str:
    """Word a rate; the bar and the last line do so alike."""
    return f"{items / max(seconds, 1e-9):,.1f} items/s"


def status(tally: Tally, done: int, left: int, failed: int, begin: float, now: float) -> str:
    """Say what a run is doing."""
    parts = [_phase(tally, done, left, begin, now)]
    if failed:
        parts.append(f"{failed:,} failed")
    parts.append(_arrivals(tally, now))
    return ", ".join(part for part in parts if part)


def _phase(tally: Tally, done: int, left: int, begin: float, now: float) -> str:
    if tally.joined is None:
        return _since(
            f"starting {counted(tally.asked, 'worker')}" if tally.asked else "starting", now - begin
        )
    if tally.ready is None:
        return _since("loading the env", now - tally.joined)
    seconds = now - tally.ready
    if not done or not (tally.warm or seconds > _COLD):
        return _since("working", seconds)
    to_go = f", {_duration(left * seconds / done)} left" if left else ""
    return f"{rate_text(done, seconds)}{to_go}"


def _arrivals(tally: Tally, now: float) -> str:
    """Say how many workers have come, while some of those asked for have not: jobs may wait for hours."""
    if tally.ready is None or now - tally.ready < _SETTLED or tally.workers >= tally.asked:
        return ""
    return f"{tally.workers:,} of {counted(tally.asked, 'worker')}"


def _since(what: str, seconds: float) -> str:
    return f"{what}, {_duration(seconds)}" if seconds >= 1 else what


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def last_line(summary: RunSummary) -> str:
    """Return the line that a run ends with: items, failures, seconds of start-up and of work, items/s, workers."""
    s = summary
    if s.kept and not s.items:
        again = (
            f", {s.kept_failed:,} of them failed: retry_failed=True runs those again" if s.kept_failed else ""
        )
        return f"all {s.kept:,} items were done before{again}"
    failures = f"{s.failed:,} failed" if s.failed else "none failed"
    extra = f", {s.retries:,} {'retries' if s.retries > 1 else 'retry'}" if s.retries else ""
    extra += f", {counted(s.deaths, 'worker')} lost and replaced" if s.deaths else ""
    extra += f", batches halved {_times(s.halved)}: they did not fit into memory" if s.halved else ""
    kept = f" ({s.kept:,} more were done before)" if s.kept else ""
    efficiency = f", efficiency {s.efficiency:.2f}" if s.work_seconds >= SHORT_WORK else ""
    return (
        f"{counted(s.items, 'item')}{kept}, {failures}{extra}, start {_seconds(s.start_seconds)}, "
        f"work {_seconds(s.work_seconds)}, {rate_text(s.items, s.work_seconds)} on {_where(s)}{efficiency}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:,.1f} s"


def _where(s: RunSummary) -> str:
    if s.slots == s.workers:
        return counted(s.workers, "worker")
    each, rest = divmod(s.slots, max(1, s.workers))
    threads = f"{each} threads{' each' if s.workers > 1 else ''}" if not rest else f"{s.slots} threads in all"
    return f"{counted(s.workers, 'worker')} of {threads}"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n:,} times"


def advice(summary: RunSummary) -> str:
    """Say why several workers were no faster than one, or that their items waited; "" where there is nothing to say.

    One worker would have built the env once and run the items one after the other, in this process: without starting
    workers, importing anything there, or moving items and results.
    """
    s = summary
    if s.slots < 2 or not s.items:
        return ""
    alone = s.env_seconds + s.busy_seconds
    # the time that a lost worker spent on the item it was lost with is known to nobody
    if not s.deaths and s.seconds > max(_SLOWER * alone, alone + _WORTH_TELLING):
        lost = {
            "starting the workers": s.launch_seconds,
            "imports on the workers": s.import_seconds,
            "the env": s.env_seconds,
            "moving items and results, and waiting for the last of them": s.work_seconds
            - s.busy_seconds / s.slots,
        }
        told = sorted(((took, what) for what, took in lost.items() if took > _PART * s.seconds), reverse=True)
        causes = ", ".join(f"{what} took {_seconds(took)}" for took, what in told)
        return f"one worker would have been faster, about {_seconds(alone)} in place of {_seconds(s.seconds)}: {causes}"
    if s.work_seconds >= SHORT_WORK and s.cpu_seconds < (1 - _WAITED) * s.busy_seconds:
        share = 1 - s.cpu_seconds / s.busy_seconds
        return (
            f"the items spent {share:.0%} of their time waiting (for files, the network, a GPU, a lock or another "
            "program), not computing; if one worker alone is as fast, that is the limit"
        )
    return ""
