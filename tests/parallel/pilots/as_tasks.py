"""A client whose workers do not connect to this process: its chunks travel as Dask tasks."""

from typing import Any

import pytest

from espnet3.parallel import parallel_map
from espnet3.parallel.pilots.dask import pools


def have_tasks(client: Any) -> None:
    """Have the chunks of a client that has had no run yet travel as tasks: its workers get no pilots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.cluster, "open_pool", lambda: None)
        patch.setattr(pools, "register", lambda *_: None)
        patch.setattr(pools, "_UNREACHED", 0.0)
        assert parallel_map(abs, [-1], client=client) == [1]
