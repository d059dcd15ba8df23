"""Envs that cannot be built: an error with the worker's traceback, soon, wherever it happens."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    EnvTypeError,
    WorkerSetupError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from tests.parallel.faults.watching import TWO, nothing_left
from tests.parallel.faults.workloads import ENVS, BadProvider, Square, SquareFiles, listing_env, raising_env

CAUSES = {"raising_env": ValueError, "exiting_env": SystemExit, "missing_module_env": ModuleNotFoundError}
TIMEOUT = 4.0  # seconds that the env which hangs may take; it takes 100
PLENTY = 600.0  # seconds that the others may take, on a busy machine


def config(n_workers: int, kind: str) -> dict[str, Any]:
    """Return a configuration with a short timeout for the env that hangs."""
    return {
        "env": "local",
        "n_workers": n_workers,
        "setup_timeout": TIMEOUT if kind == "hanging_env" else PLENTY,
    }


def check(error: BaseException, kind: str, *, travelled: bool = True) -> None:
    """Assert that an error says what went wrong where the env was built."""
    text = str(error)
    if kind == "listing_env":
        assert type(error) is EnvTypeError
        assert isinstance(error, ValueError)
        assert "list" in text
        return
    assert type(error) is WorkerSetupError
    if kind == "hanging_env":
        assert "setup_timeout" in text
        assert "time.sleep(100)" in text or not travelled
        return
    assert f"in {kind}" in text, text  # the traceback
    words = {
        "raising_env": "ValueError: no such model: large-v9",
        "exiting_env": "no GPU here",
        "missing_module_env": "No module named 'no_such_module_anywhere'",
    }[kind]
    assert words in text
    if travelled:
        assert type(error.__cause__) is CAUSES[kind]


@pytest.mark.parametrize(
    ("kind", "n_workers"),
    [*((kind, 1) for kind in ENVS if kind != "hanging_env"), ("raising_env", 2), ("hanging_env", 2)],
)
def test_of_a_runner(kind: str, n_workers: int) -> None:
    """A provider that fails is a `WorkerSetupError` with its traceback; nothing is left."""
    set_parallel(config(n_workers, kind))
    with nothing_left(), pytest.raises(WorkerSetupError) as caught:
        Square(BadProvider(kind), progress=False)(range(10))
    check(caught.value, kind)


def test_timeout_of_a_runner() -> None:
    """In this process too; the runner's keyword `setup_timeout` goes before the configuration's."""
    set_parallel({"env": "local", "n_workers": 1, "setup_timeout": 50})
    with pytest.raises(WorkerSetupError) as caught:
        Square(BadProvider("hanging_env"), progress=False, setup_timeout=0.5)(range(10))
    check(caught.value, "hanging_env")


def test_of_a_runner_with_files(folder: Path) -> None:
    """With writers of its own a run fails in the same way, before any shard's writers are opened."""
    set_parallel(TWO)
    with pytest.raises(WorkerSetupError) as caught:
        SquareFiles(BadProvider("raising_env"), progress=False, output_dir=folder / "out")(range(10))
    check(caught.value, "raising_env")
    assert not list(folder.glob("out/split.*"))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_of_functions(n_workers: int) -> None:
    """A `setup_fn` that fails reaches the caller of `parallel_map`, `parallel_for` and a future in the same way."""
    set_parallel(config(n_workers, "raising_env"))
    with nothing_left():
        with pytest.raises(WorkerSetupError) as mapped:
            parallel_map(abs, range(10), setup_fn=raising_env)
        with pytest.raises(WorkerSetupError) as iterated:
            list(parallel_for(abs, range(10), setup_fn=raising_env))
        with pytest.raises(WorkerSetupError) as submitted:
            parallel_submit(abs, 1, setup_fn=raising_env).result()
    check(mapped.value, "raising_env")
    check(iterated.value, "raising_env")
    check(submitted.value, "raising_env", travelled=False)


def test_of_an_open_client() -> None:
    """From `get_client(setup_fn=...)`, `parallel_map` and plain `client.map` raise the same error."""
    set_parallel(config(2, "listing_env"))
    with nothing_left(), get_client(setup_fn=listing_env) as client:
        with pytest.raises(WorkerSetupError) as mapped:
            parallel_map(abs, range(10))
        with pytest.raises(WorkerSetupError) as plain:
            client.gather(client.map(abs, range(10)))
    check(mapped.value, "listing_env")
    check(plain.value, "listing_env")


def test_an_open_client_survives() -> None:
    """After calls whose env could not be built, or not in its own `setup_timeout`, the same client runs others."""
    with nothing_left(), get_client(config(2, "hanging_env")):
        for kind in ("hanging_env", "raising_env"):
            with pytest.raises(WorkerSetupError) as caught:
                parallel_map(abs, range(10), setup_fn=ENVS[kind])
            check(caught.value, kind)
        assert parallel_map(abs, range(10)) == list(range(10))


def test_a_module_that_hangs_when_workers_import_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's that hangs while a worker imports it ends in the same error as a slow provider."""
    (folder / "slow_to_import.py").write_text(
        "import os, time\n"
        "if os.getpid() != int(os.environ['FAULTS_DRIVER']):\n"
        "    time.sleep(100)\n"
        "def same(x):\n"
        "    return x\n"
    )
    monkeypatch.setenv("FAULTS_DRIVER", str(os.getpid()))
    monkeypatch.syspath_prepend(str(folder))
    same = importlib.import_module("slow_to_import").same

    set_parallel(config(2, "hanging_env"))
    with nothing_left(), pytest.raises(WorkerSetupError, match="setup_timeout"):
        parallel_map(same, range(10))
