"""Modules that run something when they are imported, or that no import leads to."""

import textwrap

import psutil
import pytest

from tests.habits import rows
from tests.parallel.contract.helpers import finish, start_script

MODULE = """
from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client, parallel_map, set_parallel
class Nothing(EnvironmentProvider):
    def build_env_local(self):
        return {}
class Plus(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx + 1
def plus(x):
    return x + 1

set_parallel({"env": "local", "n_workers": 2})
"""
MAIN = "import work"
CALLS = {
    "map": "print(parallel_map(plus, range(4)))",
    "runner": "print(Plus(Nothing())(range(4)))",
    "client": "with get_client() as client: print(client.submit(plus, 1).result())",
    "detached": "Plus(Nothing(), async_mode=True, output_dir='run')(range(4))",
}


def refused(folder, module, line, python=None):
    """Run a program that imports a module that runs something; return what it said, once nothing of it is left."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"{MODULE}{line}\n")
    done = finish(start_script(folder, MAIN, python=python))
    assert done.returncode == 1 and not done.stdout, (done.stdout, done.stderr)
    psutil.wait_procs([each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)])
    said = done.stderr.split("ConfigError: ")[-1]
    assert f"{path}, line {len(MODULE.splitlines()) + 1}: {line}" in said, done.stderr
    assert "put the line into a function" in said
    return said


@pytest.mark.parametrize("call", rows([*CALLS], ("runner",)))
def test_a_module_that_runs_something_is_named(tmp_path, call):
    """Workers and jobs that import the module refuse its call, with its line; nothing is queued and nothing left."""
    assert "module work runs something when it is imported" in refused(tmp_path, "work", CALLS[call])
    assert not (tmp_path / "run").exists()


def test_a_program_that_was_started_as_a_module_is_named(tmp_path):
    """`python -m package` without a main guard cannot submit jobs, which would import it."""
    (tmp_path / "pkg").mkdir()
    said = refused(tmp_path, "pkg.__main__", CALLS["detached"], python=["-m", "pkg"])
    assert "module pkg.__main__ runs" in said


def test_what_an_item_calls_is_no_import(tmp_path):
    """Runs inside items go on working, of functions and of scripts that an item executes."""
    (tmp_path / "inner.py").write_text(f"{MODULE}total = sum(parallel_map(plus, range(4)))\n")
    main = MODULE + textwrap.dedent("""
        import runpy

        def nested(x):
            return sum(parallel_map(plus, range(x))), runpy.run_path("inner.py")["total"]

        print(parallel_map(nested, range(3)))
        """)
    done = finish(start_script(tmp_path, main))
    assert done.stdout == "[(0, 10), (1, 10), (3, 10)]\n", done.stderr


# --- what no import leads to ----------------------------------------------------------------------

# loaded in ways in which no worker could import it
LOADED = """
import dataclasses
from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client, parallel_map, parallel_submit, set_parallel

SCALE = 2

@dataclasses.dataclass(frozen=True)
class Item:
    n: int
def scaled(n):
    return n * SCALE
def double(item):
    return Item(scaled(item.n))
class Scales(EnvironmentProvider):
    def build_env_local(self):
        return {"by": Item(self.config["by"])}
class Times(BaseRunner):
    @staticmethod
    def forward(idx, by):
        return idx * by.n
def everything():
    set_parallel({"env": "local", "n_workers": 2})
    items, doubled = [Item(1), Item(2)], [Item(2), Item(4)]
    assert parallel_map(double, items) == doubled
    assert parallel_submit(double, items[0]).result() == doubled[0]
    with get_client() as client:
        assert client.gather(client.map(scaled, range(3))) == [0, 2, 4]
    for _ in range(2):
        assert list(Times(Scales({"by": 3}), output_dir="run", progress=False)(range(4))) == [0, 3, 6, 9]
    return "all is well"

def detached():
    set_parallel({"env": "local", "n_workers": 1})
    run = Times(Scales({"by": 3}), output_dir="detached", async_mode=True, progress=False)(range(4))
    assert run.wait(100).done, run.status()
    assert list(run.merge()) == [0, 3, 6, 9]
    return "all is well"
"""
BY_PATH = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(NAME, "elsewhere/work.py")
module = importlib.util.module_from_spec(spec)
REGISTERED and sys.modules.__setitem__(NAME, module)
spec.loader.exec_module(module)
print(module.CALL())
"""
SPAWNED = (
    LOADED
    + """
if __name__ == "__main__":
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(CALL))
"""
)
WAYS = {
    "spawn": SPAWNED,
    "by path": BY_PATH.replace("NAME", "'loaded'").replace("REGISTERED", "True"),
    "not registered": BY_PATH.replace("NAME", "'work'").replace("REGISTERED", "False"),
}


def said(folder, way, call):
    """Run a program in which the module is loaded in some way, and return how that ended."""
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "work.py").write_text(LOADED)
    (folder / "work.py").write_text("def double(item):\n    return None\n")
    return finish(start_script(folder, WAYS[way].replace("CALL", call)))


@pytest.mark.parametrize("way", ["spawn", "not registered"])
def test_what_stands_in_it_works_on_workers(tmp_path, way):
    """Functions, items, results, errors, providers and runners travel to workers of each kind, and resume a folder."""
    done = said(tmp_path, way, "everything")
    assert done.stdout == "all is well\n", done.stderr


@pytest.mark.parametrize("way", rows(["by path", "not registered"], ("by path",)))
def test_a_detached_job_finds_it_or_says_that_none_could(tmp_path, way):
    """A job loads the module by its file; where no file or another one belongs to the name, that is one error."""
    done = said(tmp_path, way, "detached")
    if way == "by path":
        assert done.stdout == "all is well\n", done.stderr
    else:
        assert "ConfigError: " in done.stderr.splitlines()[-1], done.stderr
        assert not (tmp_path / "detached").exists()
