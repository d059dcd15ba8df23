"""`same_answer`, for users' own runners."""

import itertools
import random

import numpy
import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.testing import equal, same_answer


class Provider(EnvironmentProvider):
    """A counter that a careless runner may advance."""

    def build_env_local(self):
        return {"counter": itertools.count()}


class Honest(BaseRunner):
    @staticmethod
    def forward(idx, counter):
        return {"idx": idx, "array": numpy.full(3, idx)}


class Stateful(BaseRunner):
    """Depends on how many items its process has seen."""

    @staticmethod
    def forward(idx, counter):
        return next(counter)


class Drawing(BaseRunner):
    @staticmethod
    def forward(idx):
        return random.random(), numpy.random.rand()

    @staticmethod
    def batch_forward(indices):
        return [Drawing.forward(i) for i in indices]


def test_an_honest_runner_passes_and_its_results_are_returned():
    """`same_answer` returns the results of a runner that gives them everywhere."""
    runner = Honest(Provider(), batch_size=5)
    results = same_answer(runner, range(30), n_workers=(2,), batch_sizes=(None, 7))
    assert [r["idx"] for r in results] == list(range(30)) and runner.batch_size == 5


def test_state_kept_between_items_is_found_out():
    """A result that depends on what ran before differs with the order, and is named."""
    with pytest.raises(AssertionError, match=r"item \d+ differs: .* with 1 worker.*, \d+ with .*backwards"):
        same_answer(Stateful(Provider()), range(50), n_workers=(1, 2), batch_sizes=(None,))


def test_runs_that_go_to_a_folder_are_not_resumed(tmp_path):
    """With an `output_dir` each run is a fresh one elsewhere: state is found out, and the folder stays empty."""
    runner = Stateful(Provider(), output_dir=tmp_path)
    with pytest.raises(AssertionError, match="differs"):
        same_answer(runner, range(20), n_workers=(1,), batch_sizes=(None,))
    assert (runner.output_dir, list(tmp_path.iterdir())) == (tmp_path, [])


def test_random_numbers_without_a_seed_are_found_out_and_a_seed_mends_it():
    """Draws differ without `seed`; with it they agree for any workers and batch size."""
    with pytest.raises(AssertionError, match="differs"):
        same_answer(Drawing(Provider()), range(5), n_workers=(1,))
    same_answer(Drawing(Provider(), seed=0), range(40), n_workers=(1, 2), batch_sizes=(None, 7))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
        ([1, (2, "a")], [1, (2, "a")], True),
        ({"a": numpy.arange(3)}, {"a": numpy.arange(3)}, True),
        ({"a": numpy.arange(3)}, {"a": numpy.arange(3.0)}, False),
    ],
)
def test_results_are_compared_by_value_and_type(one, other, same):
    """Arrays, nan and nested containers compare as a person would expect."""
    assert equal(one, other) is same
