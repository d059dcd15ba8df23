"""The page of results: docs/generated/espnet3-results.md."""

import os
from collections.abc import Iterator, Sequence

from tests.dropin.deliberate import REASONS
from tests.dropin.environment import ESPNET
from tests.dropin.recipe import Check
from tests.dropin.suites import Suite
from tests.dropin.times import Times, table


def page(checks: Sequence[Check], timed: Sequence[Times], suites: Sequence[Suite]) -> str:
    """Return the page in Markdown; a part that was not run has no table."""
    return "\n".join([*_head(), *_recipe(checks), *_times(timed), *_suites(suites)]) + "\n"


def _head() -> Iterator[str]:
    yield "# ESPnet3's recipe and tests on this layer"
    yield ""
    yield (
        f"`make test-espnet3` lays this layer over the source distribution of ESPnet {ESPNET}, and runs its recipe "
        "`mini_an4` and its tests with both layers. With `ARGS=--write` it has written this page."
    )


def _recipe(checks: Sequence[Check]) -> Iterator[str]:
    if not checks:
        return
    yield from ("", "## `mini_an4`, unmodified", "")
    yield "| What was run | Result |"
    yield "|---|---|"
    for check in checks:
        yield f"| {check.name} | {'; '.join(check.wrong).replace('|', '/') or 'as promised'} |"


def _times(timed: Sequence[Times]) -> Iterator[str]:
    if not timed:
        return
    yield from ("", "## Seconds", "")
    loads = [load for each in timed for load in each.load]
    yield (
        f"Median and range of {len(timed[0].wall)} rounds in turn, start and imports included, one thread of torch in "
        f"each process, on {os.cpu_count()} cores. The machine's load was {min(loads):.0f} to {max(loads):.0f} then: "
        "where that is more than the cores, other work shared them, and processor times say more than wall times."
    )
    yield from ("", *table(timed))


def _suites(suites: Sequence[Suite]) -> Iterator[str]:
    if not suites:
        return
    yield from ("", "## Its tests", "")
    yield "| Folder | Tests | Pass with its own layer | Pass with ours |"
    yield "|---|---|---|---|"
    for suite in suites:
        yield f"| `{suite.where}` | {suite.total} | {suite.theirs} | {suite.ours} |"
    lost = {name: why for suite in suites for name, why in suite.lost.items()}
    if lost:
        yield from ("", "Those that pass with its own layer alone:", "")
        yield "| Test | Why |"
        yield "|---|---|"
        for name, why in lost.items():
            yield f"| `{name}` | {REASONS.get(name, why).replace('|', '/')} |"
    gained = [name for suite in suites for name in suite.gained]
    if gained:
        yield from ("", "Those that pass with ours alone:", "")
        yield from (f"- `{name}`" for name in gained)
