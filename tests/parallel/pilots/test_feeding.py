"""What a slot is given, and when it is given nothing, over a real socket that nobody reads."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest

from espnet3.parallel.engine.work import Work
from espnet3.parallel.pilots.channel import Channel
from espnet3.parallel.pilots.feeding import Feeder
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot

MB = 1 << 20


@pytest.fixture
def slot() -> Iterator[Slot]:
    """Return a slot whose worker is busy: nothing it is sent is read. A send that has to wait for it fails."""
    here, there = socket.socketpair()
    here.settimeout(2.0)
    channel = Channel(here)
    yield Slot(channel, Hello("worker 0", "", pid=1, host="here"))
    channel.close()
    there.close()


def feeder_of(slot: Slot, work: Work, taking: list[bool]) -> Feeder:
    """Return a feeder that has given the slot its first item, and knows that an item takes 10 ms."""
    feeder = Feeder(1, work, lambda: taking[-1], as_lines=False)
    feeder.join(slot)
    feeder.fill_all()
    assert [list(chunk.items) for chunk in slot.flying] == [[b"small"]]
    feeder.sizer.seen(units=1.0, items=1, seconds=0.01, n_bytes=100)
    return feeder


def test_a_large_chunk_is_not_sent_to_a_busy_worker(slot: Slot) -> None:
    """What the socket's buffer cannot hold stays with the driver until the worker reads again, and is not lost."""
    large = b"x" * MB
    work = Work(itertools.chain([b"small"], itertools.repeat(large, 3)))
    feeder = feeder_of(slot, work, [True])
    feeder.fill_all()
    assert len(slot.flying) == feeder.flying == 1
    assert work.returned
    chunk = work.take(100.0, 100)
    assert chunk is not None
    assert (chunk.start, list(chunk.items)) == (1, [large, large, large])


def test_a_small_chunk_is_sent_ahead(slot: Slot) -> None:
    """A busy worker is sent one chunk that it can begin at once when it is done, and no third one."""
    feeder = feeder_of(slot, Work(itertools.repeat(b"small")), [True])
    feeder.fill_all()
    feeder.fill_all()
    assert len(slot.flying) == feeder.flying == 2


def test_nothing_new_is_handed_out_while_the_consumer_does_not_ask(slot: Slot) -> None:
    """A consumer that is behind holds new items back."""
    taking = [True]
    feeder = feeder_of(slot, Work(itertools.repeat(b"small")), taking)
    taking.append(False)
    feeder.fill_all()
    assert feeder.flying == 1
    taking.append(True)
    feeder.fill_all()
    assert feeder.flying == 2


def test_what_came_back_is_handed_out_whatever_the_consumer_does(slot: Slot) -> None:
    """Items that were out before go again though the consumer is behind: it may be waiting for just them."""
    work = Work(itertools.repeat(b"small"))
    taking = [True]
    feeder = feeder_of(slot, work, taking)
    taking.append(False)
    work.put_back(slot.flying[0].part(0))
    feeder.fill_all()
    assert [chunk.start for chunk in slot.flying] == [0, 0]
