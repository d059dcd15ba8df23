"""What is loaded, and when: measured in a process of its own, because this one has loaded everything."""

from pathlib import Path

import pytest

from tests.parallel.contract.helpers import run_script

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["dask", "distributed", "torch", "hydra", "lightning", "omegaconf", "numpy"]

INLINE = """
from espnet3.parallel import BaseRunner, EnvironmentProvider, parallel_for, parallel_map, parallel_submit

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"table": [1, 2, 3]}

class Runner(BaseRunner):
    @staticmethod
    def forward(idx, table):
        return table[idx]

def double(x):
    return 2 * x

assert Runner(Provider(), seed=1, batch_size=2, on_error="record")(range(3)) == [1, 2, 3]
assert parallel_map(double, range(3)) == [0, 2, 4]
assert list(parallel_for(double, range(3), ordered=True)) == [0, 2, 4]
assert parallel_submit(double, 4).result() == 8
"""


def loaded_by(folder: Path, code: str) -> set[str]:
    """Run code in a new process and return which of HEAVY it has loaded at its end."""
    ending = f"\nimport sys\nprint('loaded', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    said = run_script(folder, code + ending)
    return set(said.splitlines()[-1].split()[1:])


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    """`import espnet3.parallel` loads neither Dask nor torch, hydra, lightning, omegaconf or numpy."""
    assert loaded_by(tmp_path, "import espnet3.parallel") == set()


def test_taking_every_name_loads_nothing_heavy_but_the_plugin(tmp_path: Path) -> None:
    """Only the one class that derives from a Dask class needs Dask to be taken from the package."""
    take = "import espnet3.parallel as p\nfor name in p.__all__:\n    if {}: getattr(p, name)"
    assert loaded_by(tmp_path, take.format("name != 'DictReturnWorkerPlugin'")) == set()
    assert loaded_by(tmp_path, take.format("True")) >= {"dask", "distributed"}


@pytest.mark.parametrize("config", ["None", "{'env': 'local', 'n_workers': 1}"])
def test_one_local_worker_needs_no_dask(config: str, tmp_path: Path) -> None:
    """Without a configuration, or with one local worker, runners and `parallel_*` work without Dask."""
    register = f"from espnet3.parallel import set_parallel\nset_parallel({config})\n"
    assert loaded_by(tmp_path, register + INLINE) == set()


def test_two_workers_load_no_dask(tmp_path: Path) -> None:
    """Calls on two workers of this machine load no Dask, submitted ones neither; a client loads it."""
    register = "from espnet3.parallel import set_parallel\nset_parallel({'env': 'local', 'n_workers': 2})\n"
    assert not loaded_by(tmp_path, register + INLINE) & {"dask", "distributed"}
    client = "from espnet3.parallel import get_client\nwith get_client():\n    pass\n"
    assert loaded_by(tmp_path, register + client) >= {"dask", "distributed"}
