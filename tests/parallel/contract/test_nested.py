"""Several uses of one client at once: inside each other, from threads, beside plain Dask futures."""

import textwrap

import pytest

from tests.habits import rows
from tests.parallel.contract.helpers import run_script

PROCESSES = '{"env": "local", "n_workers": 2}'
THREADS = '{"env": "local", "n_workers": 2, "options": {"processes": False}}'
HEAD = """
    import itertools, os, threading
    from espnet3.parallel import *
    from tests.parallel.contract import work

    def plus(x, y=1):
        return x + y

    def inner(x):
        return sum(parallel_map(plus, range(10), y=x))

    def occupy(client, pipe):  # both Dask threads wait for the driver until `release`
        for at in range(2):
            os.mkfifo(f"{pipe}.{at}")
        return client.map(lambda at: open(f"{pipe}.{at}").read(), range(2), pure=False)

    def release(pipe):
        for at in range(2):
            open(f"{pipe}.{at}", "w").close()
    """


def run(tmp_path, body, config=PROCESSES):
    """Run a script with the helpers above."""
    head = textwrap.dedent(HEAD) + f"config = {config}\n"
    return run_script(tmp_path, head + textwrap.dedent(body))


both = pytest.mark.parametrize(
    "config", rows([PROCESSES, THREADS], (PROCESSES,)), ids=["processes", "threads"]
)


@both
def test_a_map_inside_the_loop_over_a_stream(tmp_path, config):
    """parallel_map inside a loop over parallel_for on the same client works, and the stream goes on after it."""
    run(
        tmp_path,
        """
        with get_client(config):
            got = []
            for x in parallel_for(plus, range(50)):
                got.append((x, parallel_map(plus, range(3), y=x)))
        assert sorted(got) == [(x, [x, x + 1, x + 2]) for x in range(1, 51)]
        """,
        config,
    )


@both
def test_a_map_from_a_second_thread_while_a_stream_goes_on(tmp_path, config):
    """A second thread's parallel_map is served while the first thread's endless stream goes on."""
    run(
        tmp_path,
        """
        with get_client(config) as client:
            pending = occupy(client, "pipe")
            streaming, done = threading.Event(), threading.Event()

            def stream():
                for x in parallel_for(plus, itertools.count(), client=client):
                    streaming.set()
                    if done.is_set():
                        return

            thread = threading.Thread(target=stream)
            thread.start()
            streaming.wait()
            for _ in range(5):
                assert parallel_map(plus, range(100), client=client) == list(range(1, 101))
            done.set()
            thread.join()
            release("pipe")
            assert client.gather(pending) == ["", ""]
        """,
        config,
    )


@both
def test_many_threads_map_on_one_client(tmp_path, config):
    """Four threads that start parallel_map at once on a fresh client all get their own results."""
    run(
        tmp_path,
        """
        for attempt in range(3):
            with get_client(config) as client:
                pending = occupy(client, f"pipe{attempt}")
                results, barrier = {}, threading.Barrier(4)

                def work(y):
                    barrier.wait()
                    results[y] = [parallel_map(plus, range(500), client=client, y=y) for _ in range(3)]

                threads = [threading.Thread(target=work, args=(y,)) for y in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert results == {y: 3 * [list(range(y, 500 + y))] for y in range(4)}
                release(f"pipe{attempt}")
                client.gather(pending)
        """,
        config,
    )


@both
def test_a_runner_beside_a_pending_future(tmp_path, config):
    """A runner gets through while a plain future of the same client holds every Dask thread."""
    run(
        tmp_path,
        """
        with get_client(config) as client:
            pending = occupy(client, "pipe")
            runner = work.Times(work.Provider({"factor": 3}), progress=False)
            assert runner(range(200)) == [3 * x for x in range(200)]
            assert all(future.status == "pending" for future in pending)
            release("pipe")
            assert client.gather(pending) == ["", ""]
        """,
        config,
    )


@both
def test_a_map_inside_an_item(tmp_path, config):
    """parallel_map inside a function that runs on a worker works: from parallel_map, a runner and submit."""
    run(
        tmp_path,
        """
        class Nested(BaseRunner):
            @staticmethod
            def forward(idx):
                return inner(idx)

        wanted = [45 + 10 * x for x in range(6)]
        with get_client(config) as client:
            assert client.gather([client.submit(inner, x) for x in range(6)]) == wanted
            assert Nested(work.Whole({}), progress=False)(range(6)) == wanted
            assert parallel_map(inner, range(6)) == wanted
        """,
        config,
    )


def test_a_runner_inside_an_item_of_its_own_cluster(tmp_path):
    """An item may open a client of its own; both clusters give their results."""
    run(
        tmp_path,
        """
        def deeper(x):
            with get_client(config):
                return parallel_map(plus, range(3), y=x)

        set_parallel(config)
        assert parallel_map(deeper, range(2)) == [[0, 1, 2], [1, 2, 3]]
        """,
    )


@both
def test_a_worker_never_runs_more_items_at_once_than_it_has_threads(tmp_path, config):
    """After nested use and failed calls a worker with one thread still runs one item at a time."""
    run(
        tmp_path,
        """
        def at_once(x):  # how many items this worker's process is inside of, counted by itself
            import builtins, threading
            state = builtins.__dict__.setdefault("_inside", {"n": 0, "lock": threading.Lock()})
            with state["lock"]:
                state["n"] += 1
                seen = state["n"]
            sum(range(200))
            with state["lock"]:
                state["n"] -= 1
            return seen

        limit = 1 if config.get("options") is None else 2  # both workers are threads of one process
        kept = []
        with get_client(config):
            for _ in parallel_for(plus, range(4)):
                parallel_map(plus, range(3))
            for _ in range(3):
                try:
                    parallel_map(lambda x: 1 / 0, range(10))
                except ZeroDivisionError as error:
                    kept.append(error)  # with its traceback, and all that this refers to
            assert max(parallel_map(at_once, range(5000))) <= limit
        """,
        config,
    )


def test_workers_that_are_threads_run_side_by_side(tmp_path):
    """Two workers that are threads of one process are inside two items at once."""
    run(
        tmp_path,
        """
        barrier = threading.Barrier(2)
        with get_client(config):
            import builtins
            builtins.barrier = barrier
            assert sorted(parallel_map(lambda x: __import__("builtins").barrier.wait(600), range(2))) == [0, 1]
        """,
        THREADS,
    )


def test_a_summary_counts_the_workers_there_are(tmp_path):
    """After failed calls whose exceptions are kept, a run on two workers still counts two slots."""
    run(
        tmp_path,
        """
        kept = []
        with get_client(config):
            for _ in range(3):
                try:
                    parallel_map(lambda x: 1 / 0, range(10))
                except ZeroDivisionError as error:
                    kept.append(error)
            runner = work.Times(work.Provider({"factor": 3}), progress=False)
            runner(range(20000))
            assert runner.summary.slots <= 2, runner.summary
        """,
    )


@pytest.mark.parametrize("n_workers", [1, 2])
def test_items_in_threads_may_use_the_client_that_runs_them(tmp_path, n_workers):
    """Items in threads of this process that call on their own client have their results, with the client's env.

    No thread is left to run what they ask for: all of them are inside such items.
    """
    run(
        tmp_path,
        """
        def env():
            return {"y": 100}

        def outer(x):
            mapped = parallel_map(plus, range(3), client=work.client)
            streamed = list(parallel_for(plus, range(3), client=work.client, ordered=True))
            submitted = parallel_submit(plus, x, client=work.client).result()
            return mapped, streamed, submitted

        with get_client(config, setup_fn=env) as client:
            work.client = client  # in a module: a function of this script travels by value
            wanted = [100, 101, 102]
            assert parallel_map(outer, range(6), client=client) == [(wanted, wanted, 100 + x) for x in range(6)]
            futures = client.map(outer, range(1))
            assert client.gather(futures) == [(wanted, wanted, 100)]
        """,
        f'{{"env": "local", "n_workers": {n_workers}, "options": {{"processes": False, "threads_per_worker": 2}}}}',
    )
