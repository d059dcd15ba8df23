"""Providers and runners give one answer in process and on two workers."""

from dataclasses import dataclass

import numpy as np
import pytest

from espnet3.parallel import BaseRunner, ConfigError, EnvironmentProvider, ItemError, RunSummary
from tests.parallel.contract import work
from tests.parallel.contract.helpers import lines

pytestmark = pytest.mark.usefixtures("place")


def run(runner, indices, provider=None, **options):
    provider = provider or work.Provider({"factor": 3})
    return runner(provider, progress=False, **options)(indices)


# --- providers ------------------------------------------------------------------------------------


def test_one_method_makes_a_provider():
    """A provider with build_env_local alone serves any number of workers."""
    assert run(work.Times, range(40)) == [3 * x for x in range(40)]


class Made(EnvironmentProvider):
    def __init__(self, base, *more, scale=1):
        super().__init__({"base": base})
        self.values = (base, *more)
        self.scale = scale

    def build_env_local(self):
        return {"factor": self.scale * sum(self.values)}


def test_the_arguments_of_a_custom_constructor_reach_the_workers():
    """Positional, further positional and keyword arguments of a provider's constructor reach the workers."""
    assert run(work.Times, range(3), Made(1, 2, 3, scale=10)) == [0, 60, 120]


def test_inference_provider_builds_dataset_and_model_and_adds_params():
    """dataset and model are built from the config and params join the env under their names."""
    provider = work.Speech({"size": 10, "offset": 100}, params={"beam": 1000})
    assert run(work.Infer, range(10), provider) == [1100 + x for x in range(10)]


def test_the_env_is_built_once_in_every_process(tmp_path):
    """A run of many items builds the env once in every process that takes part."""
    run(work.Times, range(5_000), work.Provider({"factor": 3, "folder": str(tmp_path)}))
    built = lines(tmp_path, "built")
    assert 1 <= len(built) == len(set(built)) <= 2


# --- forward --------------------------------------------------------------------------------------


class ByClass(BaseRunner):
    offset = 1000

    @classmethod
    def forward(cls, idx, factor):
        return cls.offset + idx * factor


class Inherited(ByClass):
    offset = 2000


def test_forward_may_be_a_classmethod():
    """A classmethod forward runs with its own class, in a subclass with that."""
    assert run(ByClass, range(3)) == [1000, 1003, 1006]
    assert run(Inherited, range(3)) == [2000, 2003, 2006]


class NeedsMore(BaseRunner):
    """Wants what the provider does not give."""

    @staticmethod
    def forward(idx, factor, tokenizer, folder=None):
        work.log(folder, idx)


def test_a_missing_env_entry_is_named_with_what_there_is(tmp_path):
    """A parameter the env does not hold is an error that lists the env's keys, and no item has run."""

    class Folder(EnvironmentProvider):
        def build_env_local(self):
            return {"factor": 1, "folder": self.config}

    with pytest.raises(TypeError, match="'tokenizer'.*'factor', 'folder'"):
        run(NeedsMore, range(3), Folder(str(tmp_path)))
    assert not (tmp_path / "log").exists()


class Shadow(EnvironmentProvider):
    """Holds an entry named like forward's first parameter."""

    def build_env_local(self):
        return {"idx": -1, "factor": 2}


def test_an_env_entry_named_idx_does_not_replace_the_index():
    """The index is bound by position, so an env entry of its name is not injected."""
    assert run(work.Times, range(3), Shadow({})) == [0, 2, 4]


# --- batches --------------------------------------------------------------------------------------


class Lengths(work.Times):
    @staticmethod
    def batch_forward(indices, factor, folder):
        work.log(folder, len(indices), "batches")
        return [idx * factor for idx in indices]


class Noting(EnvironmentProvider):
    def build_env_local(self):
        return {"factor": 3, "folder": self.config}


@pytest.mark.parametrize("size", [None, 7, 1000])
def test_any_batch_size_gives_one_result_per_index(size, tmp_path):
    """batch_size changes which function is called and how often, never what the caller gets."""
    assert run(Lengths, range(200), Noting(str(tmp_path)), batch_size=size) == [3 * x for x in range(200)]
    wanted = [len(range(200)[at : at + size]) for at in range(0, 200, size)] if size else []
    assert sorted(map(int, lines(tmp_path, "batches"))) == sorted(wanted)


class Batches(work.Times):
    @staticmethod
    def batch_forward(indices, make):
        return make(indices)


class Making(EnvironmentProvider):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def build_env_local(self):
        return {"make": self.make, "factor": 1}


@pytest.mark.parametrize("make", [np.asarray, lambda b: (x for x in b)], ids=["array", "generator"])
def test_batch_forward_may_return_any_iterable_of_the_right_length(make):
    """A list, tuple, array or generator with one entry per index will do."""
    assert run(Batches, range(10), Making(make), batch_size=4) == list(range(10))


@pytest.mark.parametrize("make", [lambda b: b[:-1], lambda b: [*b, 0]], ids=["short", "long"])
def test_batch_forward_with_another_number_of_results_is_refused(make):
    """Anything but one result per index is a ValueError that says what was given and what came."""
    with pytest.raises(ValueError, match="must return one result per index"):
        run(Batches, range(10), Making(make), batch_size=4)


# --- indices --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    name: str


@pytest.mark.parametrize(
    "indices",
    [
        ["utt1", "utt2", "utt1"],
        [Key("a"), Key("b")],
        [],
        np.arange(4),
        {"utt1": "path1", "utt2": "path2"}.items(),
    ],
    ids=["text", "objects", "none", "array", "pairs"],
)
def test_indices_may_be_anything(indices):
    """forward gets each index as the caller gave it; where there is none, the result is an empty list."""
    assert run(work.Echo, indices, work.Whole({})) == list(indices)


# --- order, failures, summary ---------------------------------------------------------------------


class Costly(BaseRunner):
    """Takes longer for larger indices, and says so."""

    @staticmethod
    def forward(idx, folder):
        work.log(folder, idx)
        return idx * idx

    @staticmethod
    def item_cost(idx):
        return idx


def test_the_dearest_items_go_first_and_the_results_stay_in_order(tmp_path, place):
    """With item_cost the items start in falling order of cost, and the results are those without it."""
    indices = [3, 90, 1, 70, 2, 80, 60, 5] * 3
    assert run(Costly, indices, Noting(str(tmp_path))) == [x * x for x in indices]
    started = list(map(int, lines(tmp_path)))
    assert sorted(started) == sorted(indices)
    dear = [at for at, idx in enumerate(started) if idx >= 60]
    # of two workers one may be held up with the items that it has taken, while the other goes on
    assert started[0] == 90 and sum(dear) / len(dear) < len(started) / 2 - 1
    if place == 1:
        assert started == sorted(indices, reverse=True)


@pytest.mark.parametrize("cost", [5, lambda self, idx: float("nan")])
def test_an_invalid_cost_is_refused(cost):
    """A negative, infinite or undefined cost, or one that is no function, is a ValueError."""

    class Wrong(work.Echo):
        item_cost = cost

    with pytest.raises(ValueError, match="item_cost"):
        run(Wrong, range(3), work.Whole({}))


class Fails(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx == "utt13":
            raise LookupError("bad sample")
        return idx


@pytest.mark.parametrize("name", ["Fails", "FailsAndMerges"])
def test_a_failed_item_stops_the_run_with_its_index_and_its_exception(name, tmp_path):
    """The first failed item is an ItemError and of its exception's type too; index and cause are the item's."""
    with pytest.raises(LookupError, match="utt13.*bad sample") as caught:
        run(globals()[name], [f"utt{x}" for x in range(40)], work.Whole({}), output_dir=tmp_path / "run")
    assert isinstance(caught.value, ItemError) and caught.value.index == "utt13"
    assert type(caught.value.__cause__) is LookupError
    assert caught.value.__cause__.args == ("bad sample",)


class FailsAndMerges(Fails):
    """The same with files of its own."""

    def merge(self, shard_dirs):
        return len(shard_dirs)


def test_a_summary_has_the_figures_of_the_last_run(place):
    """After a run, summary holds its items, failures and the slots that took part; before, it is None."""
    runner = work.Times(work.Provider({"factor": 3}), progress=False)
    assert runner.summary is None
    runner(range(30))
    assert isinstance(runner.summary, RunSummary)
    assert (runner.summary.items, runner.summary.failed, runner.summary.retries) == (30, 0, 0)
    assert 1 <= runner.summary.slots <= place
    assert runner.summary.seconds > 0


def test_the_last_line_has_items_failures_times_rate_and_workers(capsys):
    """progress=True prints one last line on standard error with the figures, and nothing on output."""
    run(work.Times, range(10))
    assert capsys.readouterr() == ("", "")  # progress=False is silent
    work.Times(work.Provider({"factor": 3}))(range(1234))
    out, err = capsys.readouterr()
    assert out == ""
    lines = [each for each in err.splitlines() if not each.startswith("dashboard: ")]  # where bokeh is
    # two workers may be told that one would have been faster
    (line,) = [each for each in lines if "one worker would have been faster" not in each]
    for part in ("Times: ", "1,234 items", "none failed", "start ", "work ", " s, ", "items/s on "):
        assert part in line
    assert "efficiency" not in line


# --- batches that do not fit ----------------------------------------------------------------------


class Full(BaseRunner):
    """Fails for batches of more than four."""

    @staticmethod
    def forward(index):
        return index * 10

    @staticmethod
    def batch_forward(indices):
        if len(indices) > 4:
            raise MemoryError("no room")
        return [index * 10 for index in indices]


class FullAndWritten(Full):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "text", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result, state):
        print(result, file=writers)


@pytest.mark.parametrize("kind", [Full, FullAndWritten])
def test_halved_batches_are_counted(kind, tmp_path, capsys):
    """A batch that does not fit into memory is halved, every item has its result, and the last line says how often."""
    where = tmp_path / "run" if kind is FullAndWritten else None
    runner = kind(work.Whole(), batch_size=16, output_dir=where)
    assert list(runner(range(64))) == [None if where else index * 10 for index in range(64)]
    assert runner.summary.halved >= 2
    said = f"batches halved {runner.summary.halved} times: they did not fit into memory"
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigError, match="split_batches must be true or false, not 'no'"):
        kind(work.Whole(), batch_size=4, split_batches="no")
