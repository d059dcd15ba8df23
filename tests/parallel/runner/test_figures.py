"""What a run says of itself: what it is doing, and the figures of its last line."""

from dataclasses import replace

import pytest

from espnet3.parallel.records import RunSummary
from espnet3.parallel.runner.progress import advice, last_line

# Two workers of one thread: 1 s until the first is ready, 9 s of work
BEGUN = RunSummary(900, 0, 0, 0, 10.0, 17.0, slots=2, workers=2, start_seconds=1.0, launch_seconds=0.6)
TEN_SECONDS = replace(BEGUN, import_seconds=0.1, env_seconds=0.3, slot_seconds=18.0)


def test_the_last_line_has_start_up_apart_from_work() -> None:
    """It has the seconds of start-up and of work, the rate of the work, and workers, whatever threads they have."""
    line = last_line(TEN_SECONDS)
    assert line == (
        "900 items, none failed, start 1.0 s, work 9.0 s, 100.0 items/s on 2 workers, efficiency 0.94"
    )
    assert "efficiency" not in last_line(replace(TEN_SECONDS, seconds=1.4, start_seconds=1.1))
    assert "on 4 workers of 8 threads," in last_line(replace(TEN_SECONDS, workers=4, slots=32))
    # a worker that came late was not there for the rest
    assert replace(TEN_SECONDS, slot_seconds=17.0).efficiency == 1.0


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        (
            {"launch_seconds": 0.1, "import_seconds": 0.8, "env_seconds": 0.2},
            "imports on the workers took 0.80 s",
        ),
        ({"launch_seconds": 0.0, "import_seconds": 0.0, "env_seconds": 0.0}, "moving items and results"),
    ],
)
def test_two_workers_slower_than_one_say_why(changes: dict[str, float], first: str) -> None:
    """Where one worker would have been faster, the largest of the measured causes comes first."""
    short = replace(TEN_SECONDS, seconds=1.5, start_seconds=1.1, busy_seconds=0.1, **changes)
    said = advice(short)
    assert said.startswith("one worker would have been faster, about ")
    assert said.partition(": ")[2].startswith(first)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slots": 1, "workers": 1, "busy_seconds": 1.0},
        {"seconds": 0.5, "start_seconds": 0.4, "launch_seconds": 0.4, "busy_seconds": 0.01},
        # the time that killed workers spent on their items is unknown
        {"seconds": 4.0, "start_seconds": 2.3, "busy_seconds": 0.0, "failed": 6, "deaths": 6},
    ],
    ids=["all busy", "one worker", "a moment", "lost workers"],
)
def test_nothing_is_said_where_nothing_is_wrong(changes: dict[str, float]) -> None:
    """A run that used its workers, one on a single worker, one of a moment and one that lost workers get no advice."""
    assert advice(replace(TEN_SECONDS, **changes)) == ""
