"""Names, exceptions and results that only a user's own code can think of."""

import inspect
import io

import pytest

from espnet3.parallel import (
    BaseRunner,
    BatchLengthError,
    EnvironmentProvider,
    ItemError,
    ItemFailure,
    WorkerSetupError,
    parallel_map,
    set_parallel,
)
from tests.parallel.contract import work

# What an implementation might call its methods and attributes.
NAMES = [
    *("_run", "_task", "_batch", "_submit", "_identity", "_items", "_cost", "_config", "_client"),
    *("run", "task", "plan", "state", "policy", "folder", "items", "cost", "config", "client", "batch"),
    *("writes", "outputs", "launch", "report", "submit", "compute", "hooks", "name"),
]
PUBLIC = {
    *("forward", "batch_forward", "open_writers", "write_record", "close_writers", "merge", "write_outputs"),
    *("init_state", "reduce_state", "finalize_state", "is_shard_done", "item_cost", "summary"),
}


def with_every_name(cls):
    """Give a class a number under each of NAMES: whoever calls or reads one of them gets that."""
    for at, name in enumerate(NAMES):
        setattr(cls, name, at)
    return cls


@with_every_name
class Provider(EnvironmentProvider):
    """Has the names as well; `config` alone is its base's."""

    def __init__(self, config):
        super().__init__(config)
        for name in set(NAMES) - {"config"}:
            setattr(self, name, None)

    def build_env_local(self):
        return {"factor": self.config["factor"]}


@with_every_name
class Times(BaseRunner):
    """Has every name on the class, and again on the instance."""

    def __init__(self, provider, **options):
        for name in NAMES:
            setattr(self, name, None)
        super().__init__(provider, **options)
        for name in NAMES:
            setattr(self, name, None)

    @staticmethod
    def forward(idx, factor):
        return factor * idx

    @staticmethod
    def batch_forward(indices, factor):
        return [factor * idx for idx in indices]


class Writes(Times):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "out.txt", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(f"{state['index']} {result}\n")

    def merge(self, shard_dirs):
        return [line for folder in shard_dirs for line in (folder / "out.txt").read_text().splitlines()]


def provider():
    return Provider({"factor": 3})


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("folder", "batch_size"), [(False, None), (True, 4)], ids=["list", "folder"])
def test_a_runner_with_any_names_computes(folder, batch_size, tmp_path):
    """A runner and a provider that use every name for themselves give their results, in process and on workers."""
    runner = Times(
        provider(), batch_size=batch_size, progress=False, output_dir=tmp_path / "run" if folder else None
    )
    assert list(runner(range(12))) == [3 * x for x in range(12)]
    assert runner.summary.items == 12


def test_a_runner_with_any_names_runs_detached(tmp_path):
    """So does one with writer hooks as detached jobs, and in the merge of another process's runner."""
    set_parallel({"env": "local", "n_workers": 2})
    folders = {"async_specs_dir": tmp_path / "specs", "output_dir": tmp_path / "run"}
    detached = Writes(provider(), async_mode=True, progress=False, **folders)(range(4))
    try:
        assert detached.wait(timeout=600).done, "\n".join(text for _, text in detached.logs())
        assert list(type(detached).open(tmp_path / "run").merge()) == ["0 0", "1 3", "2 6", "3 9"]
    finally:
        detached.cancel()


def test_the_base_has_no_names_but_the_documented_ones():
    """`BaseRunner` has its hooks, and on an instance its constructor's arguments: nothing that could collide."""
    own = {name for name in vars(BaseRunner) if not name.startswith("__") and name != "_abc_impl"}
    assert own == PUBLIC
    least = type("Least", (BaseRunner,), {"forward": staticmethod(lambda idx: idx)})
    arguments = set(inspect.signature(BaseRunner.__init__).parameters) - {"self"}
    assert set(vars(least(provider()))) == arguments
    assert list(inspect.signature(least).parameters)[:3] == ["provider", "batch_size", "output_dir"]
    assert list(inspect.signature(Times).parameters) == ["provider", "options"]  # for `help()` and editors


# --- exceptions and results -----------------------------------------------------------------------


class RaisesOurs(work.Times):
    """Raises this package's own error, as a model that checks its batches may."""

    @staticmethod
    def forward(idx, factor):
        if idx == 2:
            raise BatchLengthError("two hypotheses for three utterances")
        return idx * factor

    @staticmethod
    def batch_forward(indices, factor):
        return [RaisesOurs.forward(idx, factor) for idx in indices]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("size", [None, 2])
def test_a_batch_length_error_of_an_item_is_that_items_failure(size):
    """An item may raise BatchLengthError as any other exception: it is recorded, and the others are computed."""
    provider = work.Provider({"factor": 2})
    runner = RaisesOurs(provider, batch_size=size, on_error="record", progress=False)
    results = runner(range(5))
    assert [r for r in results if not isinstance(r, ItemFailure)] == [0, 2, 6, 8]
    assert (results[2].index, results[2].message) == (2, "two hypotheses for three utterances")
    with pytest.raises(ItemError) as caught:
        RaisesOurs(provider, batch_size=size, progress=False)(range(5))
    assert type(caught.value.__cause__) is BatchLengthError


class MuteLeave(BaseException):
    """An exception that is no Exception, and cannot be shown."""

    def __str__(self):
        raise LookupError("no words")


class Leaving(EnvironmentProvider):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def build_env_local(self):
        raise self.error


@pytest.mark.usefixtures("place")
def test_a_base_exception_of_a_provider_is_a_setup_error_everywhere():
    """Whatever a provider raises, the run ends with a WorkerSetupError that names it."""
    with pytest.raises(WorkerSetupError, match="MuteLeave: .message unavailable"):
        work.Times(Leaving(MuteLeave()), progress=False)([1, 2])


def opened(path):
    return open(path)


def test_an_open_file_is_refused_and_its_text_does_not_come_back(place, tmp_path):
    """A file handle cannot leave a worker; what comes back is an error, and not a StringIO of all its text."""
    path = tmp_path / "text"
    path.write_text("a line\n")
    if place == 1:
        with parallel_map(opened, [path])[0] as file:
            assert isinstance(file, io.TextIOWrapper)
        return
    with pytest.raises(TypeError, match="open file"):
        parallel_map(opened, [path])
    with open(path) as file, pytest.raises(TypeError, match="open file"):
        parallel_map(str, [file])
