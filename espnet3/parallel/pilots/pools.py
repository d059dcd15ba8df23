"""Which client has which pool."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from espnet3.parallel.pilots.pool import Pool

_POOLS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# re-entrant: a garbage collection inside a locked region may close another client's pool
_POOLS_LOCK = threading.RLock()


def pool_of(client: Any) -> Any:
    """Return a client's pool (`Pool`, or what replaced it), made on first use, closed with the client."""
    with _POOLS_LOCK:
        pool = _POOLS.get(client)
    if pool is None:
        fresh = Pool(client)  # talks to the scheduler: not under the lock
        with _POOLS_LOCK:
            pool = _POOLS.setdefault(client, fresh)
        if pool is fresh:
            weakref.finalize(client, pool.close)
        else:
            fresh.close()
    return pool


def has_work(client: Any) -> bool:
    """Whether a job of ours runs on a client's workers."""
    pool = _POOLS.get(client)
    return pool is not None and bool(pool.busy)


def replace_pool(client: Any, pool: Any) -> None:
    """Use another kind of pool for a client from now on."""
    with _POOLS_LOCK:
        old = _POOLS.get(client)
        _POOLS[client] = pool
    if old is not None:
        old.close()


def close_pool(client: Any) -> None:
    """Close a client's pool, if it has one."""
    with _POOLS_LOCK:
        pool = _POOLS.pop(client, None)
    if pool is not None:
        pool.close()
