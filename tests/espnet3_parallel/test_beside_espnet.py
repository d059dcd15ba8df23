"""Both distributions in one environment, in both orders, and what is left when one of them goes."""

from __future__ import annotations

from pathlib import Path

from tests.espnet3_parallel.conftest import Place, Wheels

IMPORTS = """
from espnet3.parallel import BaseRunner, ItemError, set_parallel
from espnet3.parallel.base_runner import BaseRunner as Runner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.inference_provider import InferenceProvider
from espnet3.parallel.parallel import get_client, parallel_map, set_parallel as set_it
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {'offset': 1}
class Adding(BaseRunner):
    @staticmethod
    def forward(idx, offset):
        return idx + offset
print(Runner is BaseRunner, set_it is set_parallel, ItemError.__name__, Adding(Provider({}), progress=False)(range(3)))
"""


Both = tuple[Place, str]


def test_ours_is_used_in_both_orders(both: Both) -> None:
    """Every documented import is ours, and ESPnet's own modules are there, whichever was installed last."""
    place, _ = both
    assert place.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"
    assert place.python_says("from espnet3.systems.only_theirs import OWNER; print(OWNER)") == "espnet"


def test_the_package_alone_brings_the_names_when_it_was_installed_last(both: Both) -> None:
    """`import espnet3.parallel` has our names if ours was installed last, and doctor says so if it was not."""
    place, order = both
    has = place.python_says("import espnet3.parallel; print(hasattr(espnet3.parallel, 'set_parallel'))")
    said = place.run("espnet3", "doctor")
    assert said.returncode == 0, said.stderr
    assert "espnet 202611 has modules of the same names there" in said.stdout
    assert "0 wrong" in said.stdout
    if order == "espnet first":
        assert has == "True"
        assert "\n1 check, 0 wrong" in said.stdout
    else:
        assert has == "False"
        assert "is that of espnet 202611: `from espnet3.parallel import NAME` works" in said.stdout


def test_without_ours_espnets_own_layer_is_back(both: Both, tmp_path: Path) -> None:
    """After our removal the four modules are those of ESPnet, untouched."""
    place = both[0].copy(tmp_path / "place")
    place.pip("uninstall", "--quiet", "--yes", "espnet3-parallel")
    names = ["base_runner", "env_provider", "inference_provider", "parallel"]
    code = f"from importlib import import_module as get; print([get('espnet3.parallel.' + n).OWNER for n in {names}])"
    assert place.python_says(code) == str(names)


def test_without_espnet_ours_goes_on(both: Both, tmp_path: Path) -> None:
    """After ESPnet's removal every documented import still works."""
    place = both[0].copy(tmp_path / "place")
    place.pip("uninstall", "--quiet", "--yes", "espnet")
    assert place.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"


def test_alone_everything_documented_is_there(alone: Place) -> None:
    """Without ESPnet the two wheels have the layer, its names, the systems and the command."""
    assert alone.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"
    code = (
        "import espnet3.parallel as p; from espnet3.systems.base.inference_provider import InferenceProvider"
    )
    assert alone.python_says(f"{code}; print(p.parallel_map.__name__)") == "parallel_map"
    assert "there is no other" in alone.run("espnet3", "doctor").stdout


def test_a_detached_job_starts_by_the_module_of_the_runner(alone: Place) -> None:
    """`python -m espnet3.parallel.base_runner` is the job's process in the wheel too."""
    done = alone.run("python", "-m", "espnet3.parallel.base_runner")
    assert done.returncode == 2
    assert "run what is left of the shard" in done.stderr


def test_doctor_finds_two_distributions_of_the_same_systems(
    alone: Place, wheels: Wheels, tmp_path: Path
) -> None:
    """ESPnet beside our systems is wrong: they own the same files, and doctor says which to remove."""
    place = alone.copy(tmp_path / "place")
    place.install(wheels.espnet)
    said = place.run(
        "python", "-c", "from espnet3_parallel.layer import *; print(*findings(in_use()), sep='\\n')"
    )
    assert "WRONG  espnet3-parallel-systems 0.1.0 and espnet 202611 are both installed" in said.stdout
    assert "pip uninstall espnet3-parallel-systems" in said.stdout
