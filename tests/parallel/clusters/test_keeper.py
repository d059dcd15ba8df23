"""The keeper of a cluster's jobs ends when it is asked to, whatever it is doing."""

import asyncio
from types import SimpleNamespace

import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.clusters.arrays import Arrays
from espnet3.parallel.clusters.commands import end_task
from espnet3.parallel.clusters.keeper import JobKeeper

PATIENCE = 600  # seconds; all of it is over at once


class Jobs:
    """A cluster as the keeper uses it; what is submitted after the first jobs waits for `go`."""

    def __init__(self):
        self.scheduler = SimpleNamespace(add_plugin=lambda plugin: None, workers={})
        self.new_spec = {"options": {}}
        self.worker_spec = {}
        self.workers = {}
        self._i = 0
        self.submissions = 0
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    def new_worker_spec(self):
        """Return a new job's name and nothing else."""
        return {f"job-{self._i}": {}}

    async def _correct_state(self):
        self.submissions += 1
        if self.submissions > 1:
            self.begun.set()
            await self.go.wait()
        for name in self.worker_spec:
            self.workers.setdefault(name, SimpleNamespace(job_id=name, status=None))


def alone():
    """Return what submits each job by itself."""
    arrays = Arrays(BACKENDS["pbs"].scheduler)
    arrays.refused = True
    return arrays


@pytest.fixture(autouse=True)
def _no_commands(monkeypatch):
    """Have no scheduler: its queue gives no answer."""
    monkeypatch.setenv("PATH", "")


def test_a_stop_while_jobs_are_submitted_and_a_worker_comes():
    """The jobs that are being submitted are waited for, and then it ends, though a worker came in the meantime."""

    async def scenario():
        cluster = Jobs()
        keeper = JobKeeper(cluster, BACKENDS["pbs"], None, alone())
        await keeper.start(20)
        await cluster.begun.wait()
        stop = asyncio.create_task(keeper.stop())
        await asyncio.sleep(0)  # it waits for the submission now
        keeper._wake.set()
        cluster.go.set()
        await stop
        assert len(cluster.workers) == 20
        assert keeper._task.done()
        await keeper.grow_to(40)
        assert len(cluster.worker_spec) == 20

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_task_that_swallows_its_cancellation_is_cancelled_again():
    """Ending a task does not wait for ever for one that goes on after it was cancelled once."""

    async def deaf(begun):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def scenario():
        begun = asyncio.Event()
        task = asyncio.create_task(deaf(begun))
        await begun.wait()
        await end_task(task)
        assert task.cancelled()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
