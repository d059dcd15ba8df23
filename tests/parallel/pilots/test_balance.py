"""A few long items: none waits behind a busy worker while another could begin it."""

from contextlib import nullcontext

import pytest

from espnet3.parallel import get_client, parallel_for, parallel_map, set_parallel
from tests.habits import rows
from tests.parallel.pilots.items import Env, Files, First, Misjudged, first_waits, in_rounds


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

    return opened


@pytest.mark.parametrize(("workers", "items"), [(4, 8)])
def test_long_items_are_run_in_as_many_rounds_as_must_be(began, workers_of, workers, items):
    """Each worker has one of as many items as there are workers, again and again."""
    with workers_of(workers):
        parallel_map(abs, range(50))
        done = parallel_map(in_rounds, range(items), setup_fn=lambda: {"folder": began, "workers": workers})
    assert done == list(range(items))


@pytest.mark.parametrize("how", rows(["map", "stream", First, Misjudged, "folder", Files], ("map", Files)))
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
    assert done == ([None] * items if how is Files else list(range(items)))
