"""Who pays when a worker is lost: nobody but the item that was in progress.

What the mark of a dead slot says about the run it was in:

- nothing begun: all of its items go back;
- items 40 to 47: these go one by one, in a process that does nothing else; all others go back;
- item 40, and nothing else in the process: it goes again, alone, and at its second death it is poison;
  at its first where `poison_after` says so and the process ended by what was done in it;
- there is no mark, as the worker was on another host: all of its items go one by one, and the one that
  takes a second worker with it is poison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.records import ItemFailure, Policy, ProcessEnd

_IN_COMPANY = 3  # workers a suspect takes with it while another job has an item there too, before it is named
_UNMARKED = 2  # workers an item takes with it before it is named, where nobody saw it begin
_IN_VAIN = 3  # workers in a row that may die with nothing begun, before their runs are suspected


class Losses:
    """Decides what becomes of the runs that lost workers held.

    Args:
        job_id: The job's number.
        work: Takes back what is to go again.
        policy: Of the job.
        how_it_ended: Says how a process ended.
        finish: Takes a run of one item that has failed, and how.
    """

    def __init__(
        self,
        job_id: int,
        work: Work,
        policy: Policy,
        how_it_ended: Callable[[int], ProcessEnd],
        finish: Callable[[Chunk, ItemFailure], None],
    ) -> None:
        self._job_id = job_id
        self._work = work
        self._policy = policy
        self._how_it_ended = how_it_ended
        self._finish = finish
        self._in_vain = 0

    def progress(self) -> None:
        """A run was answered."""
        self._in_vain = 0

    def settle(self, slots: Sequence[Slot], alone: bool) -> None:
        """Put back, suspect or name the items of slots whose process has ended.

        Args:
            slots: All of this job's in that process, with the runs they held.
            alone: Whether no other job had anything there.
        """
        slots = [slot for slot in slots if slot.flying]
        given_up = any(slot.late is not None for slot in slots)
        inside = {slot: self._inside(slot) for slot in slots}
        begun = [slot for slot in slots if inside[slot] != (0, 0)]
        self._in_vain = self._in_vain + 1 if slots and not begun else 0
        for slot in slots:
            chunk, *ahead = slot.flying
            for other in ahead:  # not begun
                self._work.put_back(other)
            if slot.late is not None:
                self.too_late(chunk, slot)
            elif given_up:  # it was killed for another item's sake
                self._work.put_back(chunk)
            else:
                self._died(chunk, slot, inside[slot], alone and len(begun) == 1)

    def give_back(self, slots: Sequence[Slot]) -> None:
        """Take back all runs of slots that have done no harm."""
        for slot in slots:
            for chunk in slot.flying:
                self._work.put_back(chunk)
            slot.flying.clear()

    def _inside(self, slot: Slot) -> tuple[int, int] | None:
        """Return which items of its run a slot was in, (first, how many); None where that is not known."""
        if slot.mark is None or self._in_vain >= _IN_VAIN:
            return None
        chunk = slot.flying[0]
        return slot.mark.within(self._job_id, chunk.start, chunk.items) or (0, 0)

    def _died(self, chunk: Chunk, slot: Slot, inside: tuple[int, int] | None, alone: bool) -> None:
        if inside is None:
            if len(chunk.items) > 1 or chunk.deaths + 1 < max(_UNMARKED, self._policy.poison_after):
                self._work.put_back_alone(chunk, chunk.deaths + 1)
            else:
                self._poison(chunk, chunk.deaths + 1, slot)
            return
        guilty = self._without_others(chunk, *inside)
        if len(guilty.items) > 1 and chunk.suspect:  # it dies on the way in or out, not in an item
            self._work.put_back_alone(guilty, chunk.deaths)
        elif len(guilty.items) != 1 or not (alone or chunk.suspect):
            self._work.put_back(guilty)
        else:
            guilty.deaths += 1
            if guilty.deaths < (self._deadly(slot) if alone else _IN_COMPANY):
                self._work.put_back(guilty)
            else:
                self._poison(guilty, guilty.deaths, slot)

    def _deadly(self, slot: Slot) -> int:
        """Return after how many deaths an item is poison, that of this slot's process included.

        One alone may not be held against it where somebody else may have killed the process.
        """
        least = self._policy.poison_after
        if least >= _UNMARKED or self._how_it_ended(slot.hello.pid).by_itself:
            return least
        return _UNMARKED

    def _without_others(self, chunk: Chunk, at: int, n: int) -> Chunk:
        """Put back what was not in progress, and return the rest as a suspect."""
        before, after = chunk.part(0, at), chunk.part(at + n)
        before.suspect = False  # it was done and the worker lived on
        self._work.put_back(before)
        self._work.put_back(after)
        return Chunk(chunk.start + at, chunk.items[at : at + n], n > 0, chunk.deaths, chunk.late)

    def _poison(self, chunk: Chunk, deaths: int, slot: Slot) -> None:
        lost = "a worker" if deaths == 1 else f"the {deaths}. worker"
        message = (
            f"its worker process {self._how_it_ended(slot.hello.pid)}; it was the only item in progress there, "
            f"and this is {lost} lost with it"
        )
        self._finish(
            chunk,
            ItemFailure(
                index=chunk.items[0],
                error_type="WorkerDied",
                message=message,
                traceback="",
                attempts=deaths + chunk.late,
                worker=slot.hello.worker,
                cause="poison",
            ),
        )

    def too_late(self, chunk: Chunk, slot: Slot) -> None:
        """Suspect or name the item of a run that was given up in it."""
        late = slot.late
        assert late is not None
        guilty = self._without_others(chunk, late.position, late.items)
        if len(guilty.items) > 1:  # a batch: its items have the same time each
            self._work.put_back(guilty)
            return
        guilty.late += 1
        if guilty.late <= self._policy.max_retries:
            self._work.put_back(guilty)
            return
        index = guilty.items[0]
        if late.inner is not None:
            index = late.inner[0] if len(late.inner) == 1 else late.inner
        limit = self._policy.item_timeout
        over = f"item_timeout = {limit:g} s" if limit is not None else "its item_timeout"
        end = "was killed in it" if slot.hello.pid else "left it behind"
        self._finish(
            guilty,
            ItemFailure(
                index=index,
                error_type="TimeoutError",
                message=f"it took longer than {over} on worker {slot.hello.worker}, which {end} after "
                f"{late.seconds:.1f} s",
                traceback=f"It was here:\n{late.stack}" if late.stack else "",
                attempts=guilty.late,
                worker=slot.hello.worker,
                cause="timeout",
                seconds=late.seconds,
            ),
        )
