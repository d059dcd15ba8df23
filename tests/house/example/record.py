"""An invented scheduler: this record, at the end of `backends/schedulers.py`, and a job class for its header."""

from espnet3.parallel.backends import batch_backend
from espnet3.parallel.backends.scheduler import Scheduler, words

EXAMPLE = batch_backend(
    "example",
    "Example",
    Scheduler(
        mark="#EX",
        array="--tasks={first}..{last} --at-once={limit}",
        index="$EX_TASK",
        element="{job}+{index}",
        first=3,
        cancel="{job}+all",
        listing=("exstat", "--owner={user}"),
        line=r"^(?P<job>\d+)(?:\+(?P<index>\d+))?:(?P<word>\w+):(?P<node>\S*)$",
        words=words(waiting="QUEUED", running="ACTIVE", ended="DONE", failed="BROKEN", evicted="REMOVED"),
        look="exstat --job={id}",
        minutes_last=True,
        writes_seconds=False,
        extra=("--log=out-%J-%I.txt",),
        starved="memory limit passed",
    ),
    classes="example_scheduler.job:Example",
)
