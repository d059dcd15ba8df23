"""A child that a driver forks: it cannot use its parent's client, and takes nothing away from its parent."""

from pathlib import Path

from tests.parallel.faults.watching import ran

START = """
import os, sys, time
from espnet3.parallel import get_client, parallel_for, parallel_map, parallel_submit

def slow_square(x):
    time.sleep(0.002)
    return x * x

def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except Exception as error:
            print("child:", type(error).__name__, error, flush=True)
        except BaseException as error:
            print("child left by", type(error).__name__, flush=True)
            raise
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

TWO = {"env": "local", "n_workers": 2}
"""


CALLS = ["list(begun)", "dasks.result()", "ours.result()", "parallel_map(slow_square, range(100))"]


def test_a_child_that_uses_its_parents_client_is_refused(folder: Path) -> None:
    """Each call and future says at once why it cannot, and the parent's run goes on as if nothing had been."""
    code = f"""
with get_client(TWO) as client:
    begun = parallel_for(slow_square, range(2000), client=client)
    first = [next(begun) for _ in range(10)]
    ours, dasks = parallel_submit(slow_square, 7), client.submit(slow_square, 7)
    for call in [{", ".join(f"lambda: {act}" for act in CALLS)}]:
        in_child(call)
    assert sorted(first + list(begun)) == [x * x for x in range(2000)]
    assert parallel_map(slow_square, range(10), client=client) == [x * x for x in range(10)]
    assert ours.result() == dasks.result() == 49
print("parent done")
"""
    *said, last = ran(START + code, folder).splitlines()
    assert len(said) == len(CALLS) and last == "parent done"
    assert all(line.startswith("child: NoWorkersError") and "forked" in line for line in said), said


def test_a_child_that_leaves_its_parents_block_closes_nothing(folder: Path) -> None:
    """A child that ends inside the block, its interpreter's own clean-up included, leaves workers and folder alone."""
    code = """
with get_client(TWO) as client:
    begun = parallel_for(slow_square, range(2000))
    first = [next(begun)]
    for way in ("raise", "return"):
        pid = os.fork()
        if pid == 0:
            begun.close()
            if way == "raise":
                sys.exit(7)
            break
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    else:
        assert sorted(first + list(begun)) == [x * x for x in range(2000)]
        assert parallel_map(slow_square, range(10)) == [x * x for x in range(10)]
        assert len(client.scheduler_info()["workers"]) == 2
if pid == 0:
    sys.exit(7)
"""
    ran(START + code, folder)
