"""What a run shows while it goes, on a terminal and where there is none."""

import fcntl
import re
import textwrap
from contextlib import ExitStack, contextmanager

import pytest

from espnet3.parallel.runner import progress
from tests.habits import rows
from tests.parallel.contract.helpers import finish, start_script
from tests.parallel.runner.terminal import on_a_terminal

WORK = """
    import fcntl
    from espnet3 import parallel

    def wait_for(name):
        fcntl.flock(open(name), fcntl.LOCK_SH)

    def load():
        wait_for("loading")
        return {}

    def square(idx):
        if idx == 0:
            wait_for("working")
        if idx % 100 == 1:
            raise ValueError(idx)
        return idx * idx

    parallel.run(square, range(1000), setup=load, n_workers=WORKERS, on_error="record")
"""


@contextmanager
def closed(folder, *names):
    """Yield a function that opens the door of a name, at which the script waits."""
    with ExitStack() as stack:
        doors = {name: stack.enter_context(open(folder / name, "w")) for name in names}
        for door in doors.values():
            fcntl.flock(door, fcntl.LOCK_EX)
        yield lambda name: doors[name].close()


@pytest.mark.parametrize("workers", rows([1, 2], [2]))
def test_a_bar_is_alive_while_models_load(tmp_path, workers):
    """From the first second the bar says that the env loads; a rate is there once each worker has finished an item."""
    code = WORK.replace("WORKERS", str(workers))
    with closed(tmp_path, "loading", "working") as let, on_a_terminal(tmp_path, code) as terminal:
        terminal.wait_for("loading the env, ")  # and a number of seconds
        assert "items/s" not in terminal.shown
        let("loading")
        # one worker waits in item 0; another one does the rest meanwhile
        terminal.wait_for(" failed" if workers > 1 else "working, ")
        assert "items/s" not in terminal.shown
        let("working")
        shown = terminal.finish()
    assert "10 failed" in shown
    assert "1000/1000" in shown
    bar, last = re.findall(r"[\d,.]+ items/s", shown)[-2:]
    assert bar == last, "the bar's rate is not that of the last line"


# Python runs it where it starts; in the server of the workers it waits, and then in each of them but the first
SITE = """
    import fcntl, os, sys

    def wait_for(name):
        fcntl.flock(open(name), fcntl.LOCK_SH)

    def in_a_worker():
        try:
            os.mkdir("first")
        except FileExistsError:
            wait_for("second")

    if "serve(" in sys.orig_argv[-1]:
        wait_for("starting")
        os.register_at_fork(after_in_child=in_a_worker)
"""


def test_workers_that_are_to_come_keep_the_rate_back(tmp_path):
    """The bar says how many workers start; while one of them has not come, there is no rate, whatever is done."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(SITE))
    path = 'import os; os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ["PYTHONPATH"]])\n'
    code = path + textwrap.dedent(WORK).replace("WORKERS", "2").replace("idx == 0", "idx == 999")
    with (
        closed(tmp_path, "starting", "loading", "second", "working") as let,
        on_a_terminal(tmp_path, code) as terminal,
    ):
        terminal.wait_for("starting 2 workers")
        let("starting")
        let("loading")
        terminal.wait_for(" failed, 1 of 2 workers")
        assert "items/s" not in terminal.shown
        let("second")
        let("working")
        assert "1000/1000" in terminal.finish()


def test_lines_come_every_ten_seconds_where_there_is_no_terminal(tmp_path):
    """Without a terminal, a line after ten seconds says what the run is doing though no item has ended."""
    assert progress._OFTEN == 10.0
    sooner = "    from espnet3.parallel.runner import progress\n    progress._OFTEN = 1.0\n"
    with closed(tmp_path, "loading", "working") as let:
        process = start_script(tmp_path, sooner + WORK.replace("WORKERS", "1"))
        line = process.stderr.readline()
        let("loading")
        let("working")
        result = finish(process)
    assert re.fullmatch(r"square: 0 of 1,000 items, loading the env(, [\d.]+ s)?\n", line)
    assert result.returncode == 0
    assert re.search(r"square: 1,000 items, 10 failed, start \d+\.\d s, work ", result.stderr), result.stderr
    assert "\r" not in result.stderr


def test_a_run_without_standard_error_goes_on(tmp_path):
    """A program that has closed its standard error, has none, or one that can only be written to, gets its results."""
    bare = "sys.stderr = type('Bare', (), {'write': lambda self, text: len(text)})()"
    for gone in ("sys.stderr.close()", "sys.stderr = None", bare):
        code = f"""
            import sys
            from espnet3 import parallel

            {gone}
            print(parallel.run(abs, range(4)))
        """
        assert finish(start_script(tmp_path, code)).stdout == "[0, 1, 2, 3]\n"
