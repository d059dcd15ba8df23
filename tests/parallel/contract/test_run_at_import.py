"""A module that runs something when it is imported: one error that names it, and never processes without end."""

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
IN_AN_ITEM = """
from espnet3.parallel import parallel_map, set_parallel


def plus(x):
    import work

    return work.plus(x)


set_parallel({"env": "local", "n_workers": 2})
parallel_map(plus, range(3))
"""
CALLS = {
    "map": "print(parallel_map(plus, range(4)))",
    "runner": "print(Plus(Nothing())(range(4)))",
    "client": "with get_client() as client: print(client.submit(plus, 1).result())",
    "detached": "Plus(Nothing(), async_mode=True, output_dir='run')(range(4))",
}


def refused(folder, module, line, main=MAIN, python=None):
    """Run a program that imports a module that runs something; return what it said, once nothing of it is left."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"{MODULE}{line}\n")
    done = finish(start_script(folder, main, python=python))
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


def test_a_module_that_an_item_imports_is_named(tmp_path):
    """An import inside an item is a worker's import as well."""
    assert "module work runs" in refused(tmp_path, "work", CALLS["client"], IN_AN_ITEM)


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
