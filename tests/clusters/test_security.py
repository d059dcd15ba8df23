"""TLS on real SLURM."""

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.labs import SLURM
from tests.clusters.work import square

pytestmark = pytest.mark.clusters


@pytest.fixture(scope="module", autouse=True)
def labs(started):
    return started("slurm")


def test_large_results_and_many_small_ones_over_tls():
    """What TLS decrypts ahead is read too: no chunk waits for ever."""
    with get_client({**SLURM.block(2), "security": "on"}):
        assert parallel_map(len, [b"x" * n for n in range(0, 3_000_000, 300_000)]) == list(
            range(0, 3_000_000, 300_000)
        )
        assert parallel_map(bytes, [100_000] * 40) == [bytes(100_000)] * 40
        assert parallel_map(square, range(20_000)) == [x * x for x in range(20_000)]
