"""The real distributions in one environment, installed in both orders: whose layer it is, and the recipe by it."""

import os
import shutil
from pathlib import Path

from tests.dropin.compare import differences
from tests.dropin.environment import Scratch, wheels_of
from tests.dropin.recipe import INFERENCE, RECIPE, Check, Recipe

_MODULES = ("base_runner", "env_provider", "inference_provider", "parallel")
_IMPORTS = f"""
from importlib import import_module
from espnet3.parallel import BaseRunner, ItemError, get_client, parallel_map, set_parallel
from espnet3.parallel.base_runner import BaseRunner as Runner
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
assert Runner is BaseRunner and issubclass(ASRInferenceRunner, BaseRunner)
print(*[import_module("espnet3.parallel." + name).__file__ for name in {_MODULES}])
"""
_LEFT = f"""
from importlib import import_module
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
print(*[import_module("espnet3.parallel." + name).__file__ for name in {_MODULES}])
"""


def both_orders(scratch: Scratch, theirs: Recipe) -> list[Check]:
    ours, espnet = wheels_of(scratch)
    orders = {"ESPnet first": [espnet, ours], "ESPnet last": [ours, espnet]}
    return [_one(scratch, theirs, name, wheels) for name, wheels in orders.items()]


def _one(scratch: Scratch, theirs: Recipe, order: str, wheels: list[Path]) -> Check:
    check = Check(
        f"espnet and espnet3-parallel installed together, {order}: imports, doctor, infer, measure, removal"
    )
    # an environment of its own: links, as pip replaces files and never edits
    place = Scratch(scratch.folder / "both")
    shutil.rmtree(place.folder, ignore_errors=True)
    shutil.copytree(scratch.folder / "venv", place.folder / "venv", symlinks=True, copy_function=os.link)
    tree = place.folder / "recipes"  # without espnet3
    shutil.copytree(scratch.folder / "prepared" / "egs3", tree / "egs3", symlinks=True)
    recipe = Recipe(place, tree)
    pip = [recipe.python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    recipe.run(check, [*pip, "uninstall", "--yes", "espnet", "espnet3-parallel"])
    for wheel in wheels:
        recipe.run(check, [*pip, "install", "--no-deps", "--ignore-requires-python", str(wheel)])
    _expect(check, recipe, _IMPORTS, "{}/__init__.py")
    said = recipe.run(check, [str(place.python.parent / "espnet3-parallel"), "doctor"])
    if "espnet 202611" not in said or "0 wrong" not in said:
        check.wrong.append(f"doctor says {said.strip()}")
    recipe.run(check, recipe.command(["infer", "measure"], inference="inference_serial"))
    check.wrong += differences(
        theirs.folder / INFERENCE.format("serial"), tree / RECIPE / INFERENCE.format("serial")
    )
    recipe.run(check, [*pip, "uninstall", "--yes", "espnet3-parallel"])
    _expect(check, recipe, _LEFT, "{}.py")
    return check


def _expect(check: Check, recipe: Recipe, code: str, form: str) -> None:
    """Have the four modules' files be those of one layer: ours are packages, ESPnet's are modules."""
    found = recipe.run(check, [recipe.python, "-c", code]).splitlines()[-1].split()
    ends = [f"espnet3/parallel/{form.format(name)}" for name in _MODULES]
    check.wrong += [
        f"{file}, and not {end}" for file, end in zip(found, ends, strict=False) if not file.endswith(end)
    ]
