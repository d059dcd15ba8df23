"""The backend contract on local workers, and on the stand-ins of PBS, LSF and Moab."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from espnet3.parallel.testing import BackendContract
from tests.standins import standin
from tests.waiting import wait_until


class TestLocal(BackendContract):
    """Processes of this machine."""

    config: ClassVar = {"env": "local", "n_workers": 2}


@pytest.mark.matrix
class OnStandIn(BackendContract):
    """Jobs of a stand-in; none is left at the end, and no file."""

    name = ""

    @classmethod
    def setup_class(cls):
        cls.place = ExitStack()
        cls.queue = cls.place.enter_context(standin(cls.name))
        cls.config = {
            "env": cls.name,
            "n_workers": 2,
            "options": {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "10m"},
        }
        cls.before = set(Path.cwd().iterdir())
        try:
            super().setup_class()
        except BaseException:
            cls.place.close()
            raise

    @classmethod
    def teardown_class(cls):
        with cls.place:
            super().teardown_class()

    @classmethod
    def check_nothing_left(cls):
        assert cls.queue.unfinished() == [] or all(each.ended_by for each in cls.queue.unfinished())
        cls.queue.cancel_all()
        assert len(cls.queue.jobs()) == 2
        pids = [each.pid for each in cls.queue.jobs() if each.pid]
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
        assert set(Path.cwd().iterdir()) == cls.before


class TestPbs(OnStandIn):
    """The stand-in of PBS."""

    name = "pbs"


class TestLsf(OnStandIn):
    """The stand-in of LSF."""

    name = "lsf"


class TestMoab(OnStandIn):
    """The stand-in of Moab."""

    name = "moab"
