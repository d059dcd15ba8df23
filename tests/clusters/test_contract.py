"""The backend contract on every real scheduler."""

import os

import pytest

from espnet3.parallel.testing import BackendContract
from tests.clusters.conftest import wait_for_no_worker
from tests.clusters.labs import HTCONDOR, OAR, SGE, SLURM, SSH, STATE

pytestmark = pytest.mark.clusters


class OnScheduler(BackendContract):
    lab = None

    @classmethod
    def check_nothing_left(cls):
        cls.lab.wait_for_empty_queue()
        with open(STATE / "tmp" / "start-seconds", "a") as file:
            file.write(f"{cls.lab.name} {cls.start_seconds:.1f}\n")

    @classmethod
    def setup_class(cls):
        cls.before = dict(os.environ)
        cls.config = cls.lab.block()
        os.environ.update(cls.lab.start())
        os.chdir(STATE / "home")
        super().setup_class()

    @classmethod
    def teardown_class(cls):
        try:
            super().teardown_class()
            wait_for_no_worker()
        finally:
            cls.lab.stop()
            os.environ.clear()
            os.environ.update(cls.before)


class TestSlurm(OnScheduler):
    lab = SLURM  # 22.05, four nodes


class TestSge(OnScheduler):
    lab = SGE  # Son of Grid Engine 8.1.9


class TestHTCondor(OnScheduler):
    lab = HTCONDOR  # 23.9


class TestOar(OnScheduler):
    lab = OAR  # 2.5, two nodes


class TestSsh(OnScheduler):
    lab = SSH  # sshd of OpenSSH 9.2 on four addresses
