"""What stands in modules that no import leads to: the script of a spawned process, and modules loaded by their path."""

import pytest

from tests.habits import rows
from tests.parallel.contract.helpers import finish, start_script

# loaded in ways in which no worker could import it
MODULE = """
import dataclasses, functools
from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client, parallel_map, parallel_submit, set_parallel

SCALE = 2


@dataclasses.dataclass(frozen=True)
class Item:
    n: int


class Odd(ValueError):
    pass


@functools.lru_cache
def scaled(n):
    return n * SCALE


def double(item):
    return Item(scaled(item.n))


def odd(x):
    raise Odd(x)


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
    try:
        parallel_map(odd, items)
    except Odd as error:
        assert type(error) is Odd
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
    MODULE
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
    (folder / "elsewhere" / "work.py").write_text(MODULE)
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
