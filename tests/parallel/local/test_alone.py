"""`env: local` with one worker: this process, unless an option asks for what only a process of its own can give."""

import pytest

from espnet3.parallel import parallel_for, parallel_map, parallel_submit, set_parallel
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.runner.execute import runs_here
from tests.parallel.local.items import Shared, Wait, variable


def one_worker(**options):
    set_parallel({"env": "local", "n_workers": 1, "options": options})


def test_one_worker_has_as_many_threads_as_it_was_given():
    """With threads_per_worker: 4, items of one local worker are under way at once, with the same answer."""
    one_worker(threads_per_worker=4)
    runner = Wait(Shared({}), progress=False)
    assert runner(range(200)) == [i * i for i in range(200)]
    assert runner.summary.slots > 1


@pytest.mark.parametrize("call", ["map", "for", "submit"])
def test_calls_get_the_process_that_the_options_ask_for(call):
    """parallel_map, parallel_for and parallel_submit honour the options of one local worker."""
    one_worker(env={"ASKED_FOR": "yes"})
    seen = {
        "map": lambda: parallel_map(variable, range(3)),
        "for": lambda: list(parallel_for(variable, range(3))),
        "submit": lambda: [parallel_submit(variable, 0).result(600)],
    }[call]()
    assert set(seen) == {"yes"}


@pytest.mark.parametrize(
    ("options", "here"),
    [
        ({}, True),
        ({"memory_limit": "auto", "silence_logs": 10}, True),
        ({"processes": True}, False),
        ({"processes": False, "threads_per_worker": 4}, False),
        ({"memory_limit": "4GB"}, False),
        ({"dashboard_address": "127.0.0.1:0"}, False),
    ],
)
def test_every_option_is_kept_or_asks_for_a_process(options, here):
    """An option of one local worker is one that this process keeps anyway, or it is a process that has it."""
    assert runs_here(ParallelConfig.parse({"env": "local", "options": options})) == here
