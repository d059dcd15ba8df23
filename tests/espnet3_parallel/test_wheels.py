"""What the two wheels hold."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import espnet3.parallel
from tests.espnet3_parallel.conftest import ESPNET, ROOT, Wheels

SHARED = ["base_runner", "env_provider", "inference_provider", "parallel"]


def inside(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def modules(*folders: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for each in folders for path in (ROOT / each).rglob("*.py")}


def test_the_layer_has_all_of_its_modules_and_nothing_else(wheels: Wheels) -> None:
    """The layer's wheel holds its modules, four of them as packages, a module for each public name, and the licence."""
    expected = modules("espnet3/parallel", "espnet3/cli", "espnet3_parallel") | {"espnet3/parallel/py.typed"}
    expected -= {f"espnet3/parallel/{name}.py" for name in SHARED}
    expected |= {f"espnet3/parallel/{name}/__init__.py" for name in SHARED}
    expected |= {f"espnet3/parallel/{name}.py" for name in espnet3.parallel.__all__}
    assert inside(wheels.layer) == expected | {"espnet3/parallel/base_runner/__main__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in ZipFile(wheels.layer).namelist())


def test_the_systems_have_the_rest(wheels: Wheels) -> None:
    """What of espnet3 is not in the layer's wheel is in that of the systems, but for espnet3 itself."""
    expected = modules("espnet3/systems", "espnet3/components")
    assert inside(wheels.systems) == expected | {"espnet3/systems/py.typed", "espnet3/components/py.typed"}
    both = modules("espnet3/systems", "espnet3/components", "espnet3/parallel", "espnet3/cli")
    assert modules("espnet3") - both == {"espnet3/__init__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in ZipFile(wheels.systems).namelist())


def test_one_file_alone_is_in_espnets_distribution_too(wheels: Wheels) -> None:
    """The only file that ESPnet's distribution has as well is the docstring of espnet3.parallel."""
    assert inside(wheels.layer) & set(ESPNET) == {"espnet3/parallel/__init__.py"}
