"""Items that draw random numbers: the same draws wherever and however they run."""

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from espnet3.parallel import ItemError, get_client, set_parallel
from espnet3.parallel.engine.seeding import item_seed, seed_all
from tests.parallel.faults.watching import REPO, TWO, Mailbox, acting
from tests.parallel.faults.workloads import (
    Draws,
    DrawsInBatches,
    DrawsInHooks,
    Named,
    Nested,
    Provider,
    indices_alike,
)
from tests.parallel.pilots.as_tasks import have_tasks

TORCH = importlib.util.find_spec("torch") is not None
N = 100


@contextmanager
def workers(n: int, **options: Any) -> Iterator[None]:
    set_parallel({"env": "local", "n_workers": n, "options": options} if n > 1 else None)
    yield
    set_parallel(None)


def draw(
    cls: type[Draws] = Draws,
    indices: Any = range(N),
    seed: int = 0,
    root: str = "",
    torch: bool = False,
    **options: Any,
) -> Any:
    """Run items that draw."""
    runner = cls(Provider({"torch": torch, "root": root}), seed=seed, progress=False, **options)
    return runner(indices)


def test_equal_draws_everywhere() -> None:
    """An item's draws, torch's too, depend on neither the number of workers, nor the batch size, nor batches."""
    expected = draw(torch=TORCH)
    assert len({x[1] for x in expected}) == N
    for n in (1, 2):
        with workers(n):
            for cls, size in ((Draws, None), (DrawsInBatches, 7)):
                assert draw(cls, batch_size=size, torch=TORCH) == expected, (n, cls, size)


def test_the_draws_follow_the_index() -> None:
    """The draws of an item do not depend on its place, and differ between items and between seeds."""
    expected = draw()
    assert draw(indices=[7, 3, 50]) == [expected[7], expected[3], expected[50]]
    assert all(a[1:] != b[1:] for a, b in zip(draw(seed=1), expected, strict=True))


def test_equal_draws_after_a_worker_was_killed(folder: Path, mailbox: Mailbox) -> None:
    """A worker that is killed at half way changes nobody's draws."""
    expected = draw()
    set_parallel({"env": "local", "n_workers": 2})
    with acting(lambda: psutil.Process(int(mailbox.take()[0])).kill()):
        assert draw(root=str(folder)) == expected


def test_hooks_that_draw_disturb_no_item(tmp_path: Path) -> None:
    """What an item or a writer hook draws in one thread is not missing in the items of another one."""
    expected = list(
        DrawsInHooks(Provider({}), seed=0, progress=False, output_dir=tmp_path / "here")(range(120))
    )
    with workers(2, threads_per_worker=2):
        runner = DrawsInHooks(Provider({}), seed=0, progress=False, output_dir=tmp_path / "there")
        assert list(runner(range(120))) == expected


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_seeded_run_within_a_seeded_run(n_workers: int) -> None:
    """An item of a seeded run may run a seeded runner of its own."""
    expected = Nested(Provider({}), progress=False)(range(4))
    with workers(n_workers):
        assert Nested(Provider({}), seed=0, progress=False)(range(4)) == expected


def test_the_callers_own_state_is_untouched() -> None:
    """A run in this process leaves the caller's `random`, numpy and torch where they were."""
    torch = importlib.import_module("torch") if TORCH else None

    def drawn(between: Callable[[], object]) -> list[float]:
        random.seed(5)
        np.random.seed(5)
        if torch:
            torch.manual_seed(5)
        found = [random.random(), random.gauss(0, 1)]
        between()
        found += [random.gauss(0, 1), float(np.random.random())]
        return found + (torch.rand(2).tolist() if torch else [])

    assert drawn(lambda: draw(torch=TORCH)) == drawn(lambda: None)


SCRIPT = """
import json, sys
from espnet3.parallel import set_parallel
from tests.parallel.faults.workloads import Draws, Provider, indices_alike
assert "numpy" not in sys.modules
set_parallel({"env": "local", "n_workers": int(sys.argv[1])})
runner = Draws(Provider({}), seed=0, progress=False)
found = runner([f"utt-{i}" for i in range(20)]) + runner(indices_alike())
print(json.dumps([drawn for _, *drawn in found]))
"""


def in_a_new_process(n_workers: int, hash_seed: int) -> Any:
    """Draw for items with names, and for odd ones, in a process that has its own hash seed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(n_workers)],
        env={**os.environ, "PYTHONPATH": str(REPO), "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def test_equal_draws_under_any_hash_seed_and_with_numpy_imported_late() -> None:
    """Names, sets, objects without a repr and long arrays have the same draws in every process, and their own."""
    runner = Draws(Provider({}), seed=0, progress=False)
    other = np.arange(2000)
    other[1000] = 0
    found = runner([*(f"utt-{i}" for i in range(20)), *indices_alike(), other, Named("v")])
    expected = [drawn for _, *drawn in found]
    assert len({drawn[0] for drawn in expected}) == len(expected)
    del expected[-2:]
    for n_workers, hash_seed in [(1, 1), (2, 2)]:
        assert in_a_new_process(n_workers, hash_seed) == expected


class DrawsBesideDask(Draws):
    """While an item runs, Dask looks at the sizes of lists and tables, as its event loop does now and then."""

    @staticmethod
    def forward(idx: Any, torch: bool = False, root: str = "") -> Any:
        import pandas
        from dask.sizeof import sizeof

        first = random.random(), float(np.random.random())
        for held in (list(range(1000)), pandas.DataFrame({"text": ["a", "b"] * 200})):
            beside = threading.Thread(target=sizeof, args=(held,))
            beside.start()
            beside.join()
        return [*first, random.random(), float(np.random.random())]


def test_dask_draws_from_generators_of_its_own() -> None:
    """What Dask draws beside an item, where chunks are its tasks, changes nothing of what the item draws."""
    expected = []
    for idx in range(5):
        seed_all(item_seed(0, idx))
        expected.append(
            [random.random(), float(np.random.random()), random.random(), float(np.random.random())]
        )
    with get_client(TWO) as client:
        have_tasks(client)
        assert draw(DrawsBesideDask, range(5)) == expected


def test_a_number_has_one_seed_whatever_its_type() -> None:
    """An index from `np.arange` draws as the equal one from `range`: to a run folder both are the same run."""
    assert {item_seed(3, index) for index in (np.int64(5), np.int8(5), np.uint32(5))} == {item_seed(3, 5)}


def test_an_index_without_content_is_refused() -> None:
    """An index that no seed can be made from is an error that says so, not a draw that nobody can repeat."""
    with pytest.raises(ItemError, match="the index is a generator, which has no content"):
        draw(indices=[(x for x in "ab")])
