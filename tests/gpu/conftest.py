"""A stand-in of NVML's library, compiled once."""

import pytest

from tests.gpu.machine import Machine, build_nvml


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(nvml, tmp_path):
    return Machine(nvml, tmp_path)
