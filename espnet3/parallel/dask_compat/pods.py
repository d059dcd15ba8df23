"""What dask-kubernetes and its client do not document: `KubeCluster._start` and `_scale`, `Api._session` of kr8s."""

from __future__ import annotations

import asyncio
from typing import Any

_END = 5.0  # seconds for a start that was cut off to end


class StartsInTime:
    """Mixin for a `KubeCluster`, whose start has no limit of its own: `KubeCluster._start`.

    Its `resource_timeout` does not cover a pod of the scheduler that never runs, for want of its image or of room.

    Attributes:
        start_timeout: Seconds it may take.
    """

    start_timeout: float

    async def too_late(self) -> None:
        """Called once the time is over, while the cluster is still there; to raise what is to be said of it."""

    async def _start(self) -> None:
        start = asyncio.ensure_future(super()._start())  # type: ignore[misc]  # mixed into one that has it
        done, _ = await asyncio.wait({start}, timeout=self.start_timeout)
        try:
            if done:
                start.result()
                return
            start.cancel()
            await asyncio.wait({start}, timeout=_END)
            await self.too_late()
        except BaseException:
            await close_locally(self)
            raise


async def close_locally(cluster: Any) -> None:
    """Close what a cluster has in this process, and delete nothing: `Cluster._close`."""
    from distributed.deploy.cluster import Cluster

    close: Any = Cluster._close
    await close(cluster)


async def scale_pods(cluster: Any, workers: int) -> None:
    """Have the operator start or retire workers: `KubeCluster._scale`, from its event loop."""
    await cluster._scale(workers)


async def close_connections(api: Any) -> None:
    """Close what kr8s has open, for which it has no way: `Api._session`, made by the first request."""
    session = getattr(api, "_session", None)
    if session is not None:
        await session.aclose()
