"""A batch that does not fit into memory is halved wherever it runs, and the summary counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, ConfigError, EnvironmentProvider, set_parallel
from tests.habits import rows


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {"room": 4}

    def build_worker_setup_fn(self) -> Any:
        return self.build_env_local


class Runner(BaseRunner):
    """Fails for batches of more than there is room for."""

    @staticmethod
    def forward(index: int, room: int) -> int:
        return index * 10

    @staticmethod
    def batch_forward(indices: list[int], room: int) -> list[int]:
        if len(indices) > room:
            raise MemoryError("no room")
        return [index * 10 for index in indices]


class Written(Runner):
    """Writes results to files of its own."""

    @staticmethod
    def open_writers(shard_dir: Any, **env: Any) -> Any:
        return open(Path(shard_dir, "text"), "w", encoding="utf-8")

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        print(result, file=writers)

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        writers.close()


@pytest.mark.parametrize("n_workers", rows([1, 2], [2]))
@pytest.mark.parametrize("kind", [Runner, Written])
def test_halved_batches_are_counted(
    kind: type[Runner], n_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process and on workers every item has its result, and the last line says how often a batch was halved."""
    set_parallel({"env": "local", "n_workers": n_workers})
    where = tmp_path / "run" if kind is Written else None
    runner = kind(Provider(), batch_size=16, output_dir=where)
    assert list(runner(range(64))) == [index * 10 for index in range(64)]
    assert runner.summary.halved >= 2
    assert (
        f"batches halved {runner.summary.halved} times: they did not fit into memory"
        in capsys.readouterr().err
    )


def test_the_option_is_checked() -> None:
    """A value that is neither true nor false is refused when the runner is made."""
    with pytest.raises(ConfigError, match="split_batches must be true or false, not 'no'"):
        Runner(Provider(), batch_size=4, split_batches="no")  # type: ignore[arg-type]  # that is the test
