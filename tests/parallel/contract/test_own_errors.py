"""Exceptions and results that only a user's own code can think of are the same in process and on workers."""

import io

import pytest

from espnet3.parallel import (
    BatchLengthError,
    EnvironmentProvider,
    ItemError,
    ItemFailure,
    WorkerSetupError,
    parallel_map,
)
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")


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
    """Raises the exception that it is made with."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def build_env_local(self):
        raise self.error


def test_a_base_exception_of_a_provider_is_a_setup_error_everywhere():
    """Whatever a provider raises, the run ends with a WorkerSetupError that names it."""
    with pytest.raises(WorkerSetupError, match="MuteLeave: .message unavailable"):
        work.Times(Leaving(MuteLeave()), progress=False)([1, 2])


def opened(path):
    """Return an open file."""
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
