"""The rules of blame: what follows when a process ends with items in progress."""

import json
import random
import signal
from dataclasses import asdict

import pytest

from espnet3.parallel.engine.blame import (
    OUTSIDE,
    Charges,
    Fate,
    History,
    Loss,
    after_loss,
    failure_of_item,
)
from espnet3.parallel.records import Policy, ProcessEnd

CRASHED = ProcessEnd(signal=signal.SIGSEGV)
LEFT = ProcessEnd(exit_code=3)
SHOT = ProcessEnd(signal=signal.SIGKILL)
UNKNOWN = ProcessEnd()
SUSPECT = Charges(suspect=True)


def poison(**changes: object) -> Loss:
    """Return the loss of a process that ended by itself, in one item at position 5."""
    return Loss(**{"begin": 5, "items": 1, "end": CRASHED, **changes})  # type: ignore[arg-type]  # mixed on purpose


# --- one loss at a time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [None, 1.5])
def test_several_items_in_progress_are_suspects_and_nothing_more(seconds: float | None) -> None:
    """A stretch goes one by one, with no death and no delay charged, even with `poison_after` 1."""
    loss = Loss(5, 4, CRASHED, seconds=seconds)
    assert after_loss(Charges(), loss, Policy(poison_after=1)) == (Fate.ONE_BY_ONE, SUSPECT)


def test_a_stretch_that_nobody_saw_is_charged_with_the_death() -> None:
    """Without a mark each item of the stretch may have been the one, and has one death against it."""
    loss = Loss(5, 4, UNKNOWN, seen=False)
    assert after_loss(Charges(), loss, Policy()) == (Fate.APART, Charges(True, 1))


@pytest.mark.parametrize("poison_after", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [CRASHED, LEFT])
def test_poison_after_counts_deaths_by_what_the_item_did(poison_after: int, end: ProcessEnd) -> None:
    """An item alone in processes that end by themselves is poison after exactly so many deaths."""
    assert deaths_until_poison(poison(end=end), Policy(poison_after=poison_after)) == poison_after


@pytest.mark.parametrize(("poison_after", "deaths"), [(1, 2), (2, 2), (3, 3), (7, 7)])
@pytest.mark.parametrize("end", [SHOT, UNKNOWN, ProcessEnd(signal=signal.SIGKILL, reason="memory_limit")])
def test_one_death_that_may_be_somebody_elses_names_nobody(
    poison_after: int, deaths: int, end: ProcessEnd
) -> None:
    """Where the process may have been killed from outside, two deaths are needed at least."""
    assert deaths_until_poison(poison(end=end), Policy(poison_after=poison_after)) == deaths


@pytest.mark.parametrize(("poison_after", "deaths"), [(1, 3), (3, 3), (7, 7)])
def test_beside_another_run_it_takes_three(poison_after: int, deaths: int) -> None:
    """A suspect is named at the third death beside something else, and a clear item is made a suspect first."""
    beside, policy = poison(alone=False), Policy(poison_after=poison_after)
    assert after_loss(Charges(), beside, policy) == (Fate.ONE_BY_ONE, SUSPECT)
    assert deaths_until_poison(beside, policy) == deaths + 1


def test_poison_after_zero_reports_every_death() -> None:
    """With 0 the first death of a single item is reported, whoever ended the process."""
    for end in (CRASHED, SHOT, UNKNOWN):
        assert after_loss(Charges(), poison(end=end, seen=False), Policy(poison_after=0))[0] is Fate.FAILED


@pytest.mark.parametrize("max_retries", [0, 1, 4])
def test_an_item_that_takes_too_long_has_its_retries(max_retries: int) -> None:
    """It goes again `max_retries` times, by itself, and is then given up; no death is charged."""
    charges, policy = Charges(), Policy(max_retries=max_retries, item_timeout=1.0)
    fates = []
    for _ in range(max_retries + 1):
        fate, charges = after_loss(charges, Loss(5, 1, SHOT, seconds=1.2), policy)
        fates.append(fate)
    assert fates == [Fate.ONE_BY_ONE] * max_retries + [Fate.FAILED]
    assert charges == Charges(True, 0, max_retries + 1)


def deaths_until_poison(loss: Loss, policy: Policy) -> int:
    """Return how many equal losses make a clear item poison."""
    charges, n = Charges(), 0
    while True:
        n += 1
        fate, charges = after_loss(charges, loss, policy)
        if fate is Fate.FAILED:
            return n


# --- words ----------------------------------------------------------------------------------------------------


ALONE = ", with no other item in progress"
IN_HOOK = ", with no item in progress"
OVER = ProcessEnd(signal=signal.SIGKILL, reason="memory_limit", used=1 << 30, limit=1 << 30)


@pytest.mark.parametrize(
    ("loss", "deaths", "words"),
    [
        (poison(), 1, ["was killed by SIGSEGV", ALONE]),
        (poison(end=LEFT), 2, ["exited with code 3", ALONE, "; this is the 2nd worker lost to this item"]),
        (
            poison(begin=OUTSIDE, hook="close_writers"),
            2,
            ["was killed by SIGSEGV in close_writers", IN_HOOK, "; this is the 2nd worker lost in it"],
        ),
        (
            poison(end=OVER),
            1,
            [
                "was killed by SIGKILL for using more than its memory_limit (1.00 of 1.00 GiB) allows",
                ALONE,
                f". What to do: {OVER.advice}",
            ],
        ),
    ],
)
def test_the_words_of_poison(loss: Loss, deaths: int, words: list[str]) -> None:
    """The record of a poison item says how its process ended, and which worker in a row it was."""
    failure = failure_of_item("a", loss, Charges(True, deaths, 1), Policy(), "w")
    assert (failure.index, failure.error_type, failure.cause) == ("a", "WorkerDied", "poison")
    assert failure.message == "its worker process " + "".join(words)
    assert (failure.attempts, failure.worker) == (deaths + 1, "w")


# --- the history of a shard -----------------------------------------------------------------------------------


def test_a_history_is_the_same_after_a_trip_to_disk() -> None:
    """Losses that went through JSON give the same suspects, failures and words."""
    policy = Policy(item_timeout=1.0, poison_after=2)
    history = History(policy, [Loss(3, 4, SHOT), poison(), poison(end=LEFT), Loss(8, 1, SHOT, seconds=1.2)])
    again = History(policy, [Loss.from_json(json.loads(json.dumps(asdict(loss)))) for loss in history.losses])
    assert again.losses == history.losses
    assert set(again.suspects) == set(history.suspects) == {3, 4, 5, 6, 8}
    assert set(again.failed) == set(history.failed) == {5, 8}
    for position in (5, 8):
        assert again.failure(position, position, "w") == history.failure(position, position, "w")


# --- any sequence of losses -----------------------------------------------------------------------------------

STRETCHES = [range(at, at + 25) for at in range(0, 200, 25)]  # of seeds


def some_policy(draw: random.Random) -> Policy:
    return Policy("record", draw.randrange(4), item_timeout=1.0, poison_after=draw.randrange(6))


@pytest.mark.parametrize("seeds", STRETCHES, ids=str)
def test_no_sequence_of_losses_goes_on_for_ever(seeds: range) -> None:
    """Whatever ends the processes of a stretch, seen or not, alone or not, after a bounded number it has failed."""
    for seed in seeds:
        lose_until_it_fails(random.Random(seed))


def lose_until_it_fails(draw: random.Random) -> None:
    """Draw losses of a stretch, and check what each changes and how many there can be."""
    policy = some_policy(draw)
    charges, items, losses = Charges(), draw.choice([1, 2, 50]), 0
    while True:
        losses += 1
        end = draw.choice([CRASHED, LEFT, SHOT, UNKNOWN])
        seconds = draw.choice([None, 1.5])
        loss = Loss(0, items, end, draw.random() < 0.5, draw.random() < 0.5, seconds)
        before, (fate, charges) = charges, after_loss(charges, loss, policy)
        if fate is Fate.FAILED:
            break
        assert charges.suspect
        assert (before.deaths, before.late) <= (charges.deaths, charges.late)
        # who goes one by one has one item in progress at the next death, or all of them on the way in or out
        items = 1 if fate is Fate.APART or draw.random() < 0.5 else items
    assert items == 1
    # two losses of a stretch, one of a clear item in company; each of the others is charged
    assert losses <= 3 + (max(3, policy.poison_after) - 1) + policy.max_retries + 1
    if loss.seconds is None:
        assert charges.deaths >= policy.poison_after
    else:
        assert charges.late == policy.max_retries + 1


class Shard:
    """A shard with items that crash ("c") and that hang ("h"), and an operator who shoots at some, once each."""

    def __init__(self, draw: random.Random, policy: Policy) -> None:
        n = draw.randrange(1, 40)
        self.kinds = [draw.choice("....ch") for _ in range(n)]
        self.to_shoot = {position for position in range(n) if draw.random() < 0.2}
        self.draw = draw
        self.history = History(policy)

    def run(self) -> None:
        """Run attempt after attempt, until one comes to the end."""
        for _ in range(20 * len(self.kinds) + 100):
            loss = self.attempt()
            if loss is None:
                return
            self.history.add(loss)
        raise AssertionError("it has no end")

    def attempt(self) -> Loss | None:
        """Run what has not failed, from the start, in steps as the history allows; return how that ended."""
        at, special = 0, {*self.history.suspects, *self.history.failed}
        while at < len(self.kinds):
            step = 1 if at in special else self.draw.randrange(1, 9)
            end = min([at + step, len(self.kinds), *(p for p in special if p > at)])
            for position in range(at, end):
                if position not in self.history.failed and (loss := self.call(position, at, end)) is not None:
                    return loss
            at = end
        return None

    def call(self, position: int, at: int, end: int) -> Loss | None:
        """Run one item of the stretch in progress."""
        if position in self.to_shoot:
            self.to_shoot.discard(position)
            return Loss(at, end - at, SHOT)
        if self.kinds[position] == "c":
            return Loss(at, end - at, self.draw.choice([CRASHED, LEFT]))
        return Loss(at, end - at, SHOT, seconds=1.5) if self.kinds[position] == "h" else None


@pytest.mark.parametrize("seeds", STRETCHES, ids=str)
def test_the_guilty_are_named_and_nobody_else(seeds: range) -> None:
    """Of a shard exactly the items that crash or hang have failed, each after the deaths or retries it is due."""
    for seed in seeds:
        run_a_shard(random.Random(seed))


def run_a_shard(draw: random.Random) -> None:
    policy = Policy("record", draw.randrange(3), item_timeout=1.0, poison_after=draw.randrange(1, 4))
    shard = Shard(draw, policy)
    shard.run()
    assert set(shard.history.failed) == {at for at, kind in enumerate(shard.kinds) if kind != "."}
    for position in shard.history.failed:
        failure = shard.history.failure(position, position, "w")
        cause, due = ("poison", policy.poison_after) if shard.kinds[position] == "c" else ("timeout", 1)
        due += policy.max_retries if cause == "timeout" else 0
        assert failure.cause == cause
        assert failure.attempts in (due, due + 1)  # it may have been shot once as well
