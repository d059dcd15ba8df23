"""Slots that come and go while runs want them."""

from __future__ import annotations

import os
import signal

from espnet3.parallel import get_client, parallel_map
from tests.parallel.pilots.items import process_of


def test_workers_that_come_and_go_leave_no_descriptor_in_a_client() -> None:
    """A client that sees many workers come and go, as an autoscaled one does for days, keeps no channel of theirs."""
    rounds, descriptors = 6, []
    with get_client({"env": "local", "n_workers": 1, "start_timeout": 600}) as client:
        for _ in range(rounds):
            (worker,) = set(parallel_map(process_of, range(3), client=client))
            descriptors.append(len(os.listdir("/dev/fd")))
            os.kill(worker, signal.SIGKILL)
    # a few belong to the worker that comes or goes just now
    assert descriptors[-1] - descriptors[1] < rounds / 2, descriptors
