"""Drivers in odd surroundings: what is on their path, where they stand, where temporary files go."""

from pathlib import Path

from tests.parallel.faults.watching import ran

RUN = """
import os, sys
from pathlib import Path
from espnet3.parallel import BaseRunner, EnvironmentProvider, parallel_map, set_parallel

class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx * 2

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}

def run():
    set_parallel({"env": "local", "n_workers": 2})
    assert parallel_map(abs, range(-3, 0)) == [3, 2, 1]
    assert Runner(Provider({}), progress=False)(range(3)) == [0, 2, 4]
    print("done")
"""


def test_a_relative_entry_on_the_search_path_reaches_the_workers(folder: Path) -> None:
    """A module in a folder that is on the path by a relative name is imported by workers."""
    (folder / "lib").mkdir()
    (folder / "lib" / "helper_of_the_test.py").write_text("def plus(x):\n    return x + 1\n")
    code = f"""
os.chdir({str(folder)!r})
sys.path.append("lib")
import helper_of_the_test
set_parallel({{"env": "local", "n_workers": 2}})
os.chdir("/")
sys.path[-1] = {str(folder / "lib")!r}
assert parallel_map(helper_of_the_test.plus, range(3)) == [1, 2, 3]
os.chdir({str(folder)!r})
sys.path[-1] = "lib"
assert parallel_map(helper_of_the_test.plus, range(3)) == [1, 2, 3]
print("done")
"""
    assert ran(RUN + code, folder) == "done\n"


def test_a_long_place_for_temporary_files(folder: Path) -> None:
    """A TMPDIR whose path is too long for a socket, as clusters have them, does not stop a run, nor leave anything."""
    deep = folder / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    assert ran(RUN + "run()", folder, TMPDIR=str(deep)) == "done\n"
    assert list(deep.glob("espnet3-*")) == []


SIGNALS = """
import signal, threading

ALL = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}

def dies_once(x):
    mark = Path(f"died.{x}")
    if x % 3 == 0 and not mark.exists():
        mark.touch()
        os._exit(1)
    return x, len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

def with_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
    run()
    assert parallel_map(dies_once, range(8)) == [(x, 0) for x in range(8)]
    jobs = Runner(Provider({}), output_dir="run", async_mode=True, progress=False)(range(4))
    assert jobs.wait(100).done, jobs.status()
    print("all of it")

if __name__ == "__main__":
    os.chdir(os.environ["TMPDIR"])
    thread = threading.Thread(target=with_signals)
    thread.start()
    thread.join()
"""


def test_signals_that_the_driver_does_not_get(folder: Path) -> None:
    """Workers are replaced, jobs are run, and items have all their signals, whatever the caller's thread blocks."""
    assert ran(RUN + SIGNALS, folder) == "done\nall of it\n"


HAS = """
import functools, multiprocessing, pickle, re, resource, sys, tempfile, time, warnings
from espnet3.parallel import get_client

class Mine(UserWarning):
    pass

class Outer:
    class Inner:
        pass

def double(x):
    return 2 * x

@functools.singledispatch
def kind(x):
    return "other"

@kind.register
def _(x: list):
    return [kind(each) for each in x]

kind.register(Mine, lambda x: "mine")

def has(x):
    def warns(category, text):
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn(text, category)
        return len(caught)

    mask = os.umask(0)
    os.umask(mask)
    return (
        (sys.argv, mask, resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.sched_getaffinity(0), os.getcwd()),
        (sys.getrecursionlimit(), len(str(10**5000))),
        (warns(Mine, "seen"), warns(Mine, "unseen"), warns(UserWarning, "x")),
    )

def by_name(x):
    with multiprocessing.get_context(x).Pool(1) as pool:
        (four,) = pool.map(double, [2])
    return four, type(pickle.loads(pickle.dumps(Outer.Inner()))), kind([1, Mine()])

def loads(x):
    return pickle.loads(pickle.dumps(x))

def once(x):
    time.sleep(0.05)
    return id(globals())

class ByName(BaseRunner):
    @staticmethod
    def forward(idx):
        four, inner, kinds = by_name(idx)
        return [four, inner is Outer.Inner, kinds]

class Has(BaseRunner):
    @staticmethod
    def forward(idx):
        return repr(has(0))

def try_all():
    assert all(each == has(0) for each in parallel_map(has, range(4))), (parallel_map(has, [0]), has(0))
    assert parallel_map(by_name, ["fork", "spawn"]) == 2 * [(4, Outer.Inner, ["other", "mine"])]
    assert [type(each) for each in parallel_map(loads, [Mine(), Outer.Inner()])] == [Mine, Outer.Inner]
    assert parallel_map(kind, [1, [Mine()]]) == ["other", ["mine"]]

if __name__ == "__main__":
    os.chdir(os.environ["TMPDIR"])
    set_parallel({"env": "local", "n_workers": 2})
    parallel_map(abs, range(4))  # whose processes stay
    sys.argv = ["mine.py", "--of", "mine"]
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (321, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.setrecursionlimit(4321)
    sys.set_int_max_str_digits(0)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", "see.*", Mine)
    try_all()
    with get_client():
        try_all()
    with get_client({"env": "local", "n_workers": 1, "options": {"threads_per_worker": 4}}):
        assert len(set(parallel_map(once, range(20)))) == 1
    jobs = ByName(Provider({}), output_dir="named", async_mode=True, progress=False)(["fork", "spawn"])
    assert jobs.wait(100).done, (jobs.status(), list(jobs.logs()))
    assert jobs.merge() == 2 * [[4, True, ["other", "mine"]]]
    jobs = Has(Provider({}), output_dir="run", async_mode=True, progress=False)(range(2))
    assert jobs.wait(100).done, jobs.status()
    assert jobs.merge() == 2 * [repr(has(0))], (jobs.merge(), has(0))
    print("done")
"""


def test_what_the_callers_process_has_a_worker_has(folder: Path) -> None:
    """Arguments, masks, limits, filters of warnings and the names of `__main__` are the caller's in every worker."""
    assert ran(RUN + HAS, folder) == "done\n"


ENDS = """
import glob, tempfile

class Holds(EnvironmentProvider):
    def build_env_local(self):
        place = tempfile.TemporaryDirectory(prefix="held-")
        return {"place": place, "file": open(f"{os.getpid()}.txt", "w")}

class Fails(BaseRunner):
    @staticmethod
    def forward(idx, place, file):
        file.write("x")
        open(f"{idx}.ran", "w").close()
        assert os.path.isdir(place.name) and idx != FAILS

if __name__ == "__main__":
    os.chdir(os.environ["TMPDIR"])
    set_parallel({"env": "local", "n_workers": 2, "idle_timeout": 0})
    for FAILS in (-1, 7):
        try:
            Fails(Holds({}), progress=False)(range(8))
        except Exception as error:
            assert "item 7" in str(error), error
        assert not glob.glob("held-*"), glob.glob("held-*")
        ran, files = glob.glob("*.ran"), glob.glob("*.txt")
        assert sum(map(os.path.getsize, files)) == len(ran) and (len(ran) == 8 or FAILS == 7)
        list(map(os.remove, ran + files))
    print("done")
"""


def test_what_an_env_holds_open_is_closed(folder: Path) -> None:
    """At the end of a run and after an item's error, files of an env are written and temporary folders removed."""
    assert ran(RUN + ENDS, folder) == "done\n"


STARTS = """
def refused():
    try:
        parallel_map(abs, range(4))
    except ConfigError as error:
        return str(error)

if __name__ == "__main__":
    from espnet3.parallel import ConfigError
    set_parallel({"env": "local", "n_workers": 2, "idle_timeout": 0})
    python, sys.executable = sys.executable, "/no/such/python"
    assert "sys.executable = '/no/such/python'" in refused()
    sys.executable = python
    os.environ["LARGE_ONE"] = 131073 * "x"
    assert "LARGE_ONE takes 131,084 bytes" in refused()
    del os.environ["LARGE_ONE"]
    for closed in (0, 1):
        os.close(closed)
    sys.stdout = None
    assert parallel_map(lambda x: os.system("echo") or print(x) or -x, range(4)) == [0, -1, -2, -3]
"""


def test_a_process_that_cannot_be_started_as_it_is(folder: Path) -> None:
    """A wrong interpreter and a variable that is too long are named; closed standard streams are no obstacle."""
    ran(RUN + STARTS, folder)
