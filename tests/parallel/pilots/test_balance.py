"""A few long items: none waits behind a busy worker while another could begin it."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    get_client,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.habits import rows

LONG = 0.6  # seconds: an item that is worth a worker of its own
PATIENCE = 60.0  # seconds after which an item is taken for one that waits for ever


def begun(item, folder, wanted):
    """Note that an item has begun, and wait until so many have: one that stands behind this one never will."""
    (Path(folder) / str(item)).touch()
    end = time.monotonic() + PATIENCE
    while len(list(Path(folder).iterdir())) < wanted:
        assert time.monotonic() < end, f"item {item} waits for others to begin"
        time.sleep(0.01)


def in_rounds(item, folder, workers):
    """Items of equal length: each round ends when as many have begun as there are workers."""
    begun(item, folder, (item // workers + 1) * workers)
    time.sleep(LONG)
    return item


def first_waits(item, folder, workers, items):
    """The first items, one fewer than there are workers, last until all others have begun; the next is long, too."""
    if item < workers - 1:
        begun(item, folder, items)
    else:
        begun(item, folder, 0)
        time.sleep(LONG if item < workers + 1 else 0)
    return item


class Env(EnvironmentProvider):
    """Gives what it was made with."""

    def build_env_local(self):
        return self.config


class First(BaseRunner):
    """Items of which the first waits."""

    @staticmethod
    def forward(item, folder, workers, items):
        return first_waits(item, folder, workers, items)


class Misjudged(First):
    """With costs that are wrong: the short ones are said to cost nothing."""

    @staticmethod
    def item_cost(item):
        return 1.0 if item == 0 else 0.0


class Files(First):
    """With a file for each shard."""

    @staticmethod
    def open_writers(shard_dir, **env):
        return None

    @staticmethod
    def write_record(writers, result, state, **env):
        pass


@pytest.fixture
def began(tmp_path):
    """Return a folder in which items note that they have begun."""
    (tmp_path / "began").mkdir()
    return str(tmp_path / "began")


@pytest.fixture(params=rows(["own", "client"], ("own",)))
def workers_of(request):
    """Return what has a number of workers ready: processes of ours, or those of an open client."""

    def opened(workers):
        config = {"env": "local", "n_workers": workers}
        set_parallel(config)
        return get_client(config) if request.param == "client" else nullcontext()

    yield opened
    set_parallel(None)


@pytest.mark.parametrize(("workers", "items"), [(4, 8)])
def test_long_items_are_run_in_as_many_rounds_as_must_be(began, workers_of, workers, items):
    """Each worker has one of as many items as there are workers, again and again."""
    with workers_of(workers):
        parallel_map(abs, range(50))
        done = parallel_map(in_rounds, range(items), setup_fn=lambda: {"folder": began, "workers": workers})
    assert done == list(range(items))


@pytest.mark.parametrize(
    "how", rows(["map", "stream", First, Misjudged, "folder", Files], ("map", First, Files))
)
def test_nothing_waits_behind_a_long_item(began, workers_of, tmp_path, how):
    """All workers but one are in items that last until every other has begun: the one that is left begins them."""
    workers, items = 3, 9
    env = {"folder": began, "workers": workers, "items": items}
    with workers_of(workers):
        if how == "map":
            done = parallel_map(first_waits, range(items), setup_fn=lambda: env)
        elif how == "stream":
            done = sorted(parallel_for(first_waits, iter(range(items)), setup_fn=lambda: env))
        else:
            options = {"output_dir": tmp_path / "run"} if how in ("folder", Files) else {}
            runner = First if how == "folder" else how
            done = list(runner(Env(env), progress=False, **options)(range(items)))
    assert done == list(range(items))
