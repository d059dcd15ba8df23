"""A runner run in several ways, each in a fresh env and a fresh folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.parallel import get_client, get_parallel_config, set_parallel

_CHANGED = ("batch_size", "progress", "output_dir", "seed", "async_mode", "async_specs_dir")
_SHARDS = 2


class Trials:
    """Runs a runner; at the end of the block the runner is as it was."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self._before = {name: getattr(runner, name) for name in _CHANGED}

    def __enter__(self) -> Trials:
        self.runner.progress = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        vars(self.runner).update(self._before)

    @property
    def has_batches(self) -> bool:
        """Return whether the runner has a `batch_forward` of its own."""
        return type(self.runner).batch_forward is not BaseRunner.batch_forward

    def run(
        self, items: list[Any], n_workers: int = 1, batch_size: int | None = None, seed: Any = None
    ) -> list[Any]:
        """Run items in this process (1 worker) or on local workers; without `batch_size` by `forward` if possible."""
        alone = type(self.runner).forward is not BaseRunner.forward
        self.runner.batch_size = batch_size or (None if alone else 1)
        self.runner.seed = self._before["seed"] if seed is None else seed
        with self._folder(), unused_batches():
            if n_workers > 1:
                with get_client({"env": "local", "n_workers": n_workers}):
                    return list(self.runner(items))
            with _registered(None):
                return list(self.runner(items))

    def detached(self, items: list[Any]) -> list[Any]:
        """Run items as two detached jobs of this machine and return their results."""
        self.runner.batch_size, self.runner.seed = self._before["batch_size"], self._before["seed"]
        block = {"env": "local", "n_workers": _SHARDS, "detached": {"shards": _SHARDS}}
        with TemporaryDirectory(prefix="espnet3-same-answer-") as folder, _registered(block):
            self.runner.output_dir = Path(folder) / "run"
            self.runner.async_specs_dir, self.runner.async_mode = Path(folder) / "specs", True
            try:
                run = self.runner(items)
                try:
                    run.wait()
                    return list(run.merge())
                finally:
                    run.cancel()
            finally:
                vars(self.runner).update(
                    {name: self._before[name] for name in ("output_dir", "async_specs_dir", "async_mode")}
                )

    @contextmanager
    def _folder(self) -> Iterator[None]:
        if self._before["output_dir"] is None:
            yield
            return
        with TemporaryDirectory(prefix="espnet3-same-answer-") as folder:
            self.runner.output_dir = Path(folder)
            try:
                yield
            finally:
                self.runner.output_dir = self._before["output_dir"]


@contextmanager
def unused_batches() -> Iterator[None]:
    """Do not warn of a `batch_forward` that is there and not used: that is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*batch_forward", UserWarning)
        yield


@contextmanager
def _registered(block: Any) -> Iterator[None]:
    before = get_parallel_config()
    set_parallel(block)
    try:
        yield
    finally:
        set_parallel(before)
