"""A batch that does not fit into memory is halved wherever it runs, and the summary counts it."""

import pytest

from espnet3.parallel import BaseRunner, ConfigError, set_parallel
from tests.habits import rows
from tests.parallel.contract import work


class Runner(BaseRunner):
    """Fails for batches of more than four."""

    @staticmethod
    def forward(index):
        return index * 10

    @staticmethod
    def batch_forward(indices):
        if len(indices) > 4:
            raise MemoryError("no room")
        return [index * 10 for index in indices]


class Written(Runner):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "text", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result, state):
        print(result, file=writers)


@pytest.mark.parametrize("n_workers", rows([1, 2], [2]))
@pytest.mark.parametrize("kind", [Runner, Written])
def test_halved_batches_are_counted(kind, n_workers, tmp_path, capsys):
    """In this process and on workers every item has its result, and the last line says how often a batch was halved."""
    set_parallel({"env": "local", "n_workers": n_workers})
    where = tmp_path / "run" if kind is Written else None
    runner = kind(work.Whole(), batch_size=16, output_dir=where)
    assert list(runner(range(64))) == [index * 10 for index in range(64)]
    assert runner.summary.halved >= 2
    said = f"batches halved {runner.summary.halved} times: they did not fit into memory"
    assert said in capsys.readouterr().err


def test_the_option_is_checked():
    """A value that is neither true nor false is refused when the runner is made."""
    with pytest.raises(ConfigError, match="split_batches must be true or false, not 'no'"):
        Runner(work.Whole(), batch_size=4, split_batches="no")
