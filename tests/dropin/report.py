"""The page of results: docs/espnet3-results.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.dropin.deliberate import REASONS
from tests.dropin.environment import ESPNET
from tests.dropin.recipe import Check
from tests.dropin.suites import Suite


def page(checks: Sequence[Check], suites: Sequence[Suite]) -> str:
    """Return the page in Markdown; a half that was not run has no table."""
    return "\n".join([*_head(), *_recipe(checks), *_suites(suites)]) + "\n"


def _head() -> Iterator[str]:
    yield "# ESPnet3's recipe and tests on this layer"
    yield ""
    yield (
        f"`make test-espnet3` lays this layer over the source distribution of ESPnet {ESPNET}, and runs its recipe "
        "`mini_an4` and its tests with both layers. Its last run wrote this page."
    )


def _recipe(checks: Sequence[Check]) -> Iterator[str]:
    if not checks:
        return
    yield from ("", "## `mini_an4`, unmodified", "")
    yield "| What was run | Result | Seconds of its stages | Seconds of processor time, imports included |"
    yield "|---|---|---|---|"
    for check in checks:
        seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in check.seconds.items())
        result = "; ".join(check.wrong).replace("|", "/") or "as promised"
        yield f"| {check.name} | {result} | {seconds} | {check.processor:.0f} |"


def _suites(suites: Sequence[Suite]) -> Iterator[str]:
    if not suites:
        return
    yield from ("", "## Its tests", "")
    yield "| Folder | Tests | Pass with its own layer | Pass with ours |"
    yield "|---|---|---|---|"
    for suite in suites:
        where = "test/ci" if suite.folder == "ci" else f"test/espnet3/{suite.folder}"
        yield f"| `{where}` | {suite.total} | {suite.theirs} | {suite.ours} |"
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
