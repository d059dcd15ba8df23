"""`same_answer`, for users' own runners."""

import itertools
import os
import random
import time

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


class Pads(BaseRunner):
    @staticmethod
    def forward(idx):
        return float(idx)

    @staticmethod
    def batch_forward(indices):
        return [float(idx) + 0.1 * (max(indices) - idx) for idx in indices]


class Turns(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def batch_forward(indices):
        return list(indices)[::-1]


class Sums(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"scores": numpy.ones(3, "float32")}

    @staticmethod
    def batch_forward(indices):
        return [{"scores": numpy.ones(3, "float32") * numpy.float32(1 + 1e-6)} for _ in indices]


class Clock(BaseRunner):
    @staticmethod
    def forward(idx):
        return time.time_ns()


class Process(BaseRunner):
    @staticmethod
    def forward(idx):
        return os.getpid()


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        (Stateful, "backwards; state is kept between items: item 0 gives 0 alone and 1 after itself"),
        (Drawing, "it draws random numbers: two runs of item 0 alone, each in a fresh env, differ as well"),
        (Clock, "it depends on something that changes by itself: two runs of item 0 alone"),
        (Pads, "the items of a batch change each other: alone in a batch it is the same."),
        (Turns, "batch_forward returns results in another order: this is another item's"),
        (Sums, "summed in another order (they differ by 1e-06 of the largest)"),
        (Process, "it depends on the process: an environment variable"),
    ],
)
def test_what_differs_is_named_with_its_reason(runner, said):
    """The index, both results, how each was run, and why."""
    with pytest.raises(AssertionError, match=r"item \d+ differs: .* with 1 worker, .*; ") as found:
        same_answer(runner(Provider()), range(12), n_workers=(1, 2), batch_sizes=(None, 4))
    assert said in str(found.value)
    assert ("reset it at the beginning of forward" in str(found.value)) is (runner is Stateful)


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
