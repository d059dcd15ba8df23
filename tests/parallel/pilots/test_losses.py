"""Lost workers whose end is not known yet: nobody waits for it, and what they held is decided once it is."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.pilots.channel import Channel
from espnet3.parallel.pilots.losses import PendingLosses
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.pilots.worker_cluster import WorkerCluster
from espnet3.parallel.records import ProcessEnd


class Forked(WorkerCluster):
    """A cluster that hears how its processes end, later than their sockets close."""

    owns_processes = True
    end: ProcessEnd | None = None

    def end_of(self, pid: int) -> ProcessEnd | None:
        """Return the end, once it was heard."""
        return self.end


@pytest.fixture
def slot() -> Iterator[Slot]:
    """A slot with a chunk in hand."""
    ours, theirs = socket.socketpair()
    made = Slot(Channel(ours), Hello("0", "tcp://127.0.0.1:1", 1, "here"))
    made.flying.append(Chunk(0, range(1)))
    yield made
    ours.close()
    theirs.close()


def test_a_loss_is_decided_when_the_end_of_its_process_is_known(slot: Slot) -> None:
    """Until the cluster has heard how the process ended nothing is decided, and the driver looks again soon."""
    cluster = Forked()
    losses = PendingLosses(lambda hello: False, cluster)
    losses.add([slot], True)
    assert losses.decided() == [] and len(losses) == 1
    assert losses.next_look(0.2) < 0.2
    cluster.end = ProcessEnd(exit_code=3)
    assert losses.next_look(0.2) == 0.2
    assert losses.decided() == [([slot], True, False)] and len(losses) == 0


def test_nothing_is_looked_for_where_nothing_is_lost() -> None:
    """A run without losses waits in its selector as long as ever."""
    assert PendingLosses(lambda hello: False, Forked()).next_look(0.2) == 0.2
