"""`parallel_submit`, with an open client and without one: envs, exceptions, what is left."""

import threading

import pytest

from espnet3.parallel import WorkerSetupError, parallel_submit, set_parallel
from espnet3.parallel.env.store import ENVS
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, children, lines
from tests.waiting import wait_until


@pytest.fixture
def workers():
    set_parallel(TWO)


def setup_in(folder):
    """Return a setup function that notes each call of it, a new object each time."""

    def setup():
        work.log(folder, "built")
        return {"y": 100}

    return setup


def plus_env(x, y):
    return x + y, work.pid(x)


def stored_envs(_):
    return len(ENVS._envs)


def test_an_env_is_built_once_per_process(workers, tmp_path):
    """Many calls with the same setup function build its env once in each process, one after another too."""
    hold = parallel_submit(work.until_open, 0, pipe=str(work.make_pipe(tmp_path)))  # keeps the cluster open
    futures = [parallel_submit(plus_env, x, setup_fn=setup_in(str(tmp_path))) for x in range(10)]
    answers = [future.result() for future in futures]
    answers += [parallel_submit(plus_env, x, setup_fn=setup_in(str(tmp_path))).result() for x in range(3)]
    assert [value for value, _ in answers] == [*range(100, 110), 100, 101, 102]
    assert len(lines(tmp_path)) == len({pid for _, pid in answers})
    work.open_pipe(tmp_path)
    assert hold.result() == 0


def test_envs_do_not_pile_up(workers, tmp_path):
    """After thirty calls with a setup function each, a process holds a few envs."""
    hold = parallel_submit(work.until_open, 0, pipe=str(work.make_pipe(tmp_path)))
    for n in range(30):
        assert parallel_submit(work.plus, 1, setup_fn=lambda n=n: {"y": n}).result() == 1 + n
    assert parallel_submit(stored_envs, 0).result() <= 6
    work.open_pipe(tmp_path)
    hold.result()


def test_a_setup_that_failed_is_tried_again(workers, tmp_path):
    """A setup function that fails is a WorkerSetupError; the next call tries it again."""

    def setup():
        return {"y": int((tmp_path / "model").read_text())}

    with pytest.raises(WorkerSetupError, match="model"):
        parallel_submit(work.plus, 1, setup_fn=setup).result()
    (tmp_path / "model").write_text("5")
    assert parallel_submit(work.plus, 1, setup_fn=setup).result() == 6


def test_a_setup_that_hangs_is_given_up(tmp_path):
    """setup_timeout holds for the setup function of a submitted call."""
    set_parallel({**TWO, "setup_timeout": 0.5})
    with pytest.raises(WorkerSetupError, match=r"setup_timeout = 0.5 s"):
        parallel_submit(work.plus, 1, setup_fn=work.never_ready).result()


def test_keywords_that_dask_also_knows_are_the_functions(place):
    """Keywords of the names of Dask's own options reach the function."""

    def func(x, workers, key, priority=0, pure=None):
        return x, workers, key, priority, pure

    call = parallel_submit(func, 1, workers=2, key=3, priority=4, pure=5)
    assert call.result() == (1, 2, 3, 4, 5)


def test_a_call_that_cannot_be_sent_leaves_nothing():
    """A function that cannot be pickled is an error at the call, and no process is left; nor after one that can."""
    before = children()
    set_parallel({**TWO, "idle_timeout": 0})
    lock = threading.Lock()
    with pytest.raises(TypeError):
        parallel_submit(lambda x: (x, lock), 1)
    assert children() <= before
    assert parallel_submit(work.plus, 1).result() == 2
    wait_until(lambda: children() <= before)
