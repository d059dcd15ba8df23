"""What an adapter is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from benchmarks.cases import Case
from benchmarks.work import Work


@dataclass(frozen=True, slots=True)
class Lost:
    """What an adapter puts in the place of a result that did not come."""

    index: int | None  # the index, as far as the system says it
    reason: str  # what the system says about it


class System:
    """A way to run one function over many indices.

    `start` and `stop` bracket any number of `run` calls. The peer is imported in `start` or below it, never
    at module level: a missing one is then reported, and the time it takes to import counts in W5.
    """

    title: ClassVar[str]  # what the table calls it
    needs: ClassVar[tuple[str, ...]] = ()  # modules that must be installed
    takes_hints: ClassVar[bool] = False  # `run` makes use of `work.costs`
    # most items per case or workload, for systems that would need minutes for more (`--quick` takes a fortieth)
    at_most: ClassVar[Mapping[str, int]] = {}
    # reason by case or workload, where a measurement says nothing
    leaves_out: ClassVar[Mapping[str, str]] = {}
    in_quick: ClassVar[bool] = True  # false leaves it out of `--quick` unless `--systems` names it

    @classmethod
    def missing(cls) -> list[str]:
        """Return the modules of `needs` that are not installed."""
        return [name for name in cls.needs if find_spec(name) is None]

    @classmethod
    def cap(cls, case: Case, quick: bool) -> int | None:
        """Return the most items this system runs in a case; None for all of them."""
        cap = cls.at_most.get(case.name, cls.at_most.get(case.workload))
        return cap // 40 if cap is not None and quick else cap

    @classmethod
    def takes_part(cls, case: Case) -> bool:
        """Say whether a case is meant for this system."""
        return cls.takes_hints or not case.only_hinted

    @classmethod
    def left_out(cls, case: Case) -> str | None:
        """Return why this system has no figure in a case; None where it has one."""
        return cls.leaves_out.get(case.name, cls.leaves_out.get(case.workload))

    def start(self, work: Work) -> None:
        """Bring up two worker processes."""

    def run(self, work: Work) -> Iterable[Any]:
        """Return or yield one result for each index, in order."""
        raise NotImplementedError

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        """Do the same where workers die, with a `Lost` for each item without a result, if it knows."""
        return self.run(work)

    def stop(self) -> None:
        """Close everything down."""
