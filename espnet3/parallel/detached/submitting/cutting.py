"""How a detached run is cut into shards: contiguous, of about equal cost, more of them than workers."""

from __future__ import annotations

from collections.abc import Sequence

_PER_WORKER = 4  # shards: late ones even out; each builds the env once


def bounds(n: int, shards: int | None, workers: int, cost: Sequence[float] | None, align: int) -> list[int]:
    """Return the positions at which shards begin, and the number of items at the end."""
    if n == 0:
        return [0]
    wanted = min(n, shards or _PER_WORKER * workers)
    if cost is None or not any(cost):
        found = {n * number // wanted // align * align for number in range(wanted)}
        return [*sorted(found), n]
    found = {0}
    goal, have = sum(cost) / wanted, 0.0
    for position in range(n):
        have += cost[position]
        if have >= goal * len(found) * (1 - 1e-9) and (position + 1) % align == 0 and position + 1 < n:
            found.add(position + 1)
    return [*sorted(found), n]
