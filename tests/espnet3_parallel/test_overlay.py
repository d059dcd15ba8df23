"""Our layer over a checkout of ESPnet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.espnet3_parallel.conftest import ESPNET, Place
from tests.espnet3_parallel.test_beside_espnet import IMPORTS


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in ESPNET.items():
        file = tmp_path / "checkout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "checkout"


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*.py")
        if not path.is_symlink()
    }


def test_a_checkout_hides_the_installed_layer_and_the_command_says_so(alone: Place, checkout: Path) -> None:
    """With a checkout on PYTHONPATH every verb ends with 1 and says whose layer is in use, why, and what to do."""
    for verb in ("doctor", "status"):
        said = alone.run("espnet3", verb, path=checkout)
        assert said.returncode == 1
        assert "is not ours: base_runner, env_provider, inference_provider, parallel" in said.stderr
        assert f"PYTHONPATH names {checkout}" in said.stderr
        assert f"espnet3 overlay {checkout}" in said.stderr


def test_overlay_puts_ours_in_front_and_changes_no_file(alone: Place, checkout: Path) -> None:
    """Over a checkout every documented import is ours, its files are as before, and again after --remove."""
    said = alone.run("espnet3", "overlay", checkout, path=checkout)
    assert said.returncode == 0, said.stderr
    assert alone.python_says(IMPORTS, path=checkout) == "True True ItemError [1, 2, 3]"
    assert alone.run("espnet3", "doctor", path=checkout).returncode == 0
    assert alone.run("espnet3", "overlay", checkout, path=checkout).returncode == 0  # again: the same
    assert alone.run("espnet3", "overlay", "--remove", checkout, path=checkout).returncode == 0
    assert contents(checkout) == ESPNET
    assert not [path for path in checkout.rglob("*") if path.is_symlink()]


def test_a_checkout_outlives_the_environment(alone: Place, checkout: Path, tmp_path: Path) -> None:
    """Where the layer is gone the links lead nowhere, and the checkout's own layer is back."""
    place = alone.copy(tmp_path / "place")
    place.python_says(
        f"from pathlib import Path; from espnet3_parallel.overlay import lay; lay(Path({str(checkout)!r}))"
    )
    shutil.rmtree(place.site)
    code = "from espnet3.parallel.base_runner import OWNER; print(OWNER)"
    assert alone.python_says(code, path=checkout) == "base_runner"


def test_overlay_refuses_what_is_no_checkout_and_what_would_be_hidden(
    alone: Place, checkout: Path, tmp_path: Path
) -> None:
    """A folder without ESPnet, and a checkout that has a file under one of our names, are left as they are."""
    said = alone.run("espnet3", "overlay", tmp_path)
    assert said.returncode == 1
    assert "is not a checkout of ESPnet: it has no espnet3/__init__.py" in said.stderr
    (checkout / "espnet3" / "parallel" / "config.py").write_text("")
    said = alone.run("espnet3", "overlay", checkout)
    assert said.returncode == 1
    assert "espnet3/parallel/config.py" in said.stderr
    assert not [path for path in checkout.rglob("*") if path.is_symlink()]
