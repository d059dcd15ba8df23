"""Results of each part, kept in the scratch folder: a part may be run alone, and the page has them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.dropin.recipe import Check
from tests.dropin.suites import Suite
from tests.dropin.times import Times

Result = TypeVar("Result", Check, Times, Suite)


@dataclass(frozen=True, slots=True)
class Kept:
    """Where they are, a file for each kind."""

    folder: Path

    def put(self, results: Sequence[Check] | Sequence[Times] | Sequence[Suite]) -> None:
        """Keep a part's results in place of its earlier ones; those of other folders of tests stay."""
        names = {result.where for result in results if isinstance(result, Suite)}
        others = [suite for suite in self.suites() if suite.where not in names] if names else []
        facts = [asdict(result) for result in (*others, *results)]
        self._file(type(results[0])).write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def checks(self) -> list[Check]:
        """Return those of the recipe; none where that part has never been run."""
        return self._get(Check)

    def times(self) -> list[Times]:
        """Return the seconds; none where they have never been taken."""
        return self._get(Times)

    def suites(self) -> list[Suite]:
        """Return those of ESPnet's tests, as far as they have been run."""
        return sorted(self._get(Suite), key=lambda suite: suite.where)

    def _get(self, kind: type[Result]) -> list[Result]:
        try:
            found: list[dict[str, Any]] = json.loads(self._file(kind).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return [kind(**facts) for facts in found]

    def _file(self, kind: type[Any]) -> Path:
        return self.folder / f"results-{kind.__name__.lower()}.json"
