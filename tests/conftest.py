"""What every test begins with: no configuration of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from espnet3.parallel import set_parallel


@pytest.fixture(autouse=True)
def _no_configuration_stays() -> Iterator[None]:
    """Take back what a test has set: the next one in this process would run there."""
    yield
    set_parallel(None)
