"""`BackendContract`: the duties of every backend, as a class of tests to inherit.

Workers import this module for the runners, providers and functions of the tests, so it loads neither pytest nor Dask.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.engine.seeding import item_seed
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.errors import ItemError, WorkerSetupError
from espnet3.parallel.functions.running import run
from espnet3.parallel.parallel import get_client, parallel_for, parallel_map, parallel_submit, set_parallel
from espnet3.parallel.records import ItemFailure

LOGGER = "espnet3_contract"


class _Provider(EnvironmentProvider):
    built = 0

    def build_env_local(self) -> dict[str, Any]:
        _Provider.built += 1
        return {"factor": 3, "pid": os.getpid(), "built": _Provider.built}


class _BrokenProvider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        raise FileNotFoundError("no model at that place")


class _Scale(BaseRunner):
    @staticmethod
    def forward(idx: int, factor: int) -> dict[str, Any]:
        return {"index": idx, "value": idx * factor, "text": f"item {idx} é", "list": [idx / 7] * 3}

    @staticmethod
    def batch_forward(indices: Sequence[int], factor: int) -> list[dict[str, Any]]:
        return [_Scale.forward(idx, factor) for idx in indices]


class _Where(BaseRunner):
    @staticmethod
    def forward(idx: int, pid: int, built: int) -> tuple[int, int, int]:
        time.sleep(0.02)  # long enough for every worker to get some
        return os.getpid(), pid, built


def _fail(idx: int) -> int:
    if idx == 5:
        raise LookupError("index 5 has no audio")
    return idx


def _draw(idx: int) -> float:
    return random.random()  # noqa: S311  # no secret


def _crash(idx: int) -> int:
    if idx == 7:
        os._exit(3)
    return idx


def _log(idx: int) -> int:
    if idx == 7:
        logging.getLogger(LOGGER).info("seven of %d", 20)
    return idx


def _add(x: int, factor: int) -> int:
    return x + factor


def _env() -> dict[str, Any]:
    return {"factor": 10}


def _raised(kind: type[Exception], call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


class BackendContract:
    """A suite that every backend passes: inherit from it in a test module, and give `config`.

        class TestMyCluster(BackendContract):
            config = {"env": "slurm", "n_workers": 2, "options": {...}}

    pytest collects the tests; one cluster serves them all and is closed after the last.

    Attributes:
        config: The `parallel` block, with two workers that start.
        start_seconds: Set by the suite: seconds from the call to the first result.
    """

    config: ClassVar[Mapping[str, Any]]
    start_seconds: ClassVar[float] = 0.0
    _espnet3_stack: ClassVar[ExitStack]
    _espnet3_client: ClassVar[Any]

    @classmethod
    def setup_class(cls) -> None:
        """Open the cluster and wait for its first result; a subclass may start something first."""
        set_parallel(None)
        began = time.monotonic()
        with ExitStack() as stack:
            cls._espnet3_client = stack.enter_context(get_client(cls.config))
            assert parallel_map(_add, [3], factor=6) == [9]
            cls._espnet3_stack = stack.pop_all()
        cls.start_seconds = time.monotonic() - began

    @classmethod
    def teardown_class(cls) -> None:
        """Close the cluster, and check that it left nothing behind."""
        cls._espnet3_stack.close()
        cls.check_nothing_left()

    @classmethod
    def check_nothing_left(cls) -> None:
        """Assert that the backend left nothing behind; a backend with a queue looks there."""

    def test_same_results_as_in_this_process(self) -> None:
        """A runner returns the same list, in the same order, as in this process."""
        indices = [5, 3, 11, *range(20, 60)]
        assert _Scale(_Provider(None), progress=False)(indices) == [_Scale.forward(idx, 3) for idx in indices]

    def test_batches_change_nothing(self) -> None:
        """Whatever the batch size, there is one result for each index, the same."""
        expected = [_Scale.forward(idx, 3) for idx in range(23)]
        assert _Scale(_Provider(None), batch_size=4, progress=False)(range(23)) == expected

    def test_env_is_built_where_it_is_used_and_once(self) -> None:
        """Each worker process builds the env itself, once for a run."""
        seen = _Where(_Provider(None), progress=False)(range(60))
        assert {ran == built for ran, built, _ in seen} == {True}
        built = {(pid, times) for pid, _, times in seen}
        assert len(built) == len({pid for pid, _ in built})

    def test_all_workers_take_part(self) -> None:
        """Work goes to as many processes as workers were asked for, once they are there."""
        n, pids = int(self.config["n_workers"]), set[int]()
        self._espnet3_client.wait_for_workers(n, timeout=60)
        deadline = time.monotonic() + 30
        while len(pids) < n and time.monotonic() <= deadline:
            pids = {pid for pid, _, _ in _Where(_Provider(None), progress=False)(range(60))}
        assert len(pids) == n

    def test_an_items_exception_names_the_item(self) -> None:
        """A runner stops with an `ItemError` that names the index and carries the original exception."""
        error = _raised(ItemError, lambda: run(_fail, range(10), progress=False))
        assert error.index == 5 and isinstance(error.__cause__, LookupError)

    def test_failures_can_be_recorded(self) -> None:
        """With `on_error="record"` the other items keep their results."""
        results = run(_fail, range(10), on_error="record", progress=False)
        assert [r for r in results if not isinstance(r, ItemFailure)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert results[5].error_type.endswith("LookupError")

    def test_what_items_log_arrives_at_the_driver(self) -> None:
        """A record of an item reaches the handlers of the driver, with its worker and its item."""
        seen: list[logging.LogRecord] = []
        handler, logger = logging.Handler(), logging.getLogger(LOGGER)
        handler.emit = seen.append  # type: ignore[method-assign,assignment]  # it keeps what it gets
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            run(_log, range(20), progress=False)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        (record,) = seen
        assert "item 7] seven of 20" in record.getMessage()
        assert record.__dict__["item"] == 7
        assert record.__dict__["worker"] in record.getMessage()

    def test_a_broken_env_is_reported_at_once(self) -> None:
        """An env that cannot be built raises `WorkerSetupError` with the reason."""
        error = _raised(WorkerSetupError, lambda: _Scale(_BrokenProvider(None), progress=False)(range(4)))
        assert "no model at that place" in str(error)

    def test_seeded_random_numbers(self) -> None:
        """With `seed`, random numbers are those of this process."""
        drawn = run(_draw, range(12), seed=7, progress=False)
        assert drawn == [random.Random(item_seed(7, idx)).random() for idx in range(12)]  # noqa: S311  # no secret

    def test_functions_get_the_env(self) -> None:
        """`parallel_map`, `parallel_for` and `parallel_submit` inject the env by name."""
        assert parallel_map(_add, range(30), setup_fn=_env) == [x + 10 for x in range(30)]
        assert sorted(parallel_for(_add, range(30), setup_fn=_env)) == [x + 10 for x in range(30)]
        assert parallel_submit(_add, 12, setup_fn=_env).result(timeout=60) == 22

    def test_a_functions_exception_arrives_as_itself(self) -> None:
        """`parallel_map` raises the item's own exception."""
        assert "no audio" in str(_raised(LookupError, lambda: parallel_map(_fail, range(8))))

    def test_an_item_that_kills_its_worker_is_named(self) -> None:
        """The others keep their results, and the worker process is replaced."""
        results = run(_crash, range(20), on_error="record", progress=False)
        assert results[7].cause == "poison"
        assert [r for at, r in enumerate(results) if at != 7] == [n for n in range(20) if n != 7]
