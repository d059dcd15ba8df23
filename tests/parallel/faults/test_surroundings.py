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
