"""A client whose workers do not connect to this process: its chunks travel as Dask tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from espnet3.parallel.pilots.dask import pools


@contextmanager
def chunks_as_tasks(client: Any) -> Iterator[Any]:
    """Keep the pilots of a client that has had no run yet from its workers, for a block of code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "register", lambda *_: None)
        patch.setattr(pools, "_UNREACHED", 0.0)
        yield client
