"""`parallel_submit` without a client on this machine: processes of our own, without Dask."""

import os
import signal
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from espnet3.parallel import PoisonItemError, parallel_submit, set_parallel
from espnet3.parallel.runner.calls import background
from tests.habits import rows
from tests.parallel.contract.helpers import TWO, run_script
from tests.parallel.local.items import end
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _two() -> None:
    set_parallel(TWO)


@pytest.mark.parametrize("linger", rows([0.02, 0.0], (0.0,)))
def test_calls_one_after_another_have_the_same_processes(
    linger: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that waits for each call starts two processes once, also where it is slow to make the next call."""
    # seconds: none, and most calls meet a run that is ending
    monkeypatch.setattr(background, "_LINGER", linger)
    assert len({parallel_submit(os.getpid).result() for _ in range(50)}) <= 2


def test_many_calls_are_all_answered() -> None:
    """Hundreds of calls from several threads each have their own result."""
    found: dict[int, int] = {}

    def ask(first: int) -> None:
        futures = {x: parallel_submit(pow, x, 2) for x in range(first, first + 100)}
        wait(futures.values(), timeout=600)
        found.update({x: future.result() for x, future in futures.items()})

    threads = [threading.Thread(target=ask, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {x: x * x for x in range(400)}


def test_a_long_call_holds_up_no_other(tmp_path: Path) -> None:
    """While a call does not end, another worker answers a hundred; where both are held, what waits can be cancelled."""
    pipes = [tmp_path / "a", tmp_path / "b"]
    for pipe in pipes:
        os.mkfifo(pipe)
    held = [parallel_submit(pipes[0].read_text)]
    assert [parallel_submit(abs, -x).result() for x in range(100)] == list(range(100))
    held.append(parallel_submit(pipes[1].read_text))
    wait_until(lambda: all(future.running() for future in held))
    waiting = [parallel_submit(abs, -x) for x in range(20)]
    assert all(future.cancel() for future in waiting[1:]) and not held[0].cancel()
    for pipe in pipes:
        pipe.write_text("go")
    assert len(wait(waiting[1:], timeout=600).done) == 19
    assert [future.result(timeout=600) for future in held] == ["go", "go"]
    assert waiting[0].result(timeout=600) == 0 and parallel_submit(abs, -3).result(timeout=600) == 3


@pytest.mark.parametrize("how", rows(["SIGSEGV", "exit", "SIGKILL"], ("SIGSEGV",)))
def test_a_call_that_ends_its_process_is_named(how: str) -> None:
    """A call that ends every process it is run in is an error that names it; the others have their results."""
    others = [parallel_submit(abs, -x) for x in range(20)]
    with pytest.raises(PoisonItemError, match=rf"end\('{how}'\)"):
        parallel_submit(end, how).result(timeout=600)
    assert [future.result(timeout=600) for future in others] == list(range(20))


def test_a_call_whose_process_is_shot_once_runs_again(tmp_path: Path) -> None:
    """A process that somebody kills costs a call nothing: it runs in the next one."""

    def first_time() -> str:
        try:
            (tmp_path / "began").mkdir()
        except FileExistsError:
            return "again"
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
        return "never"

    assert parallel_submit(first_time).result(timeout=600) == "again"


def test_a_program_ends_without_the_calls_that_nobody_waits_for(tmp_path: Path) -> None:
    """A program that does not wait for its calls is not kept alive by them, and takes their processes with it."""
    said = run_script(
        tmp_path,
        """
        import os, time
        from espnet3.parallel import parallel_submit, set_parallel
        set_parallel({"env": "local", "n_workers": 2})
        print(parallel_submit(os.getpid).result(), flush=True)
        left = [parallel_submit(time.sleep, 3600) for _ in range(3)]
        """,
    )
    wait_until(lambda: not Path(f"/proc/{said.strip()}").exists())


def test_ctrl_c_while_waiting_ends_the_program(tmp_path: Path) -> None:
    """A KeyboardInterrupt in `result()` is the program's, which ends with its workers."""
    said = run_script(
        tmp_path,
        """
        import os, signal, time
        from espnet3.parallel import parallel_submit, set_parallel
        set_parallel({"env": "local", "n_workers": 2})
        def interrupt(driver):
            while " S " not in open(f"/proc/{driver}/stat").read(): pass  # Python loses a signal as a wait begins
            os.kill(driver, signal.SIGINT)
            time.sleep(3600)
        print(parallel_submit(os.getpid).result(), flush=True)
        try:
            parallel_submit(interrupt, os.getpid()).result()
        except KeyboardInterrupt: print("stopped")
        """,
    )
    assert said.endswith("stopped\n")
    wait_until(lambda: not Path(f"/proc/{said.split()[0]}").exists())


def test_a_forked_child_has_processes_of_its_own(tmp_path: Path) -> None:
    """A child that the program forks submits calls too, also while its parent's calls are unfinished."""
    said = run_script(
        tmp_path,
        """
        import os, time
        from espnet3.parallel import parallel_submit, set_parallel
        set_parallel({"env": "local", "n_workers": 2})
        held = parallel_submit(time.sleep, 2)
        child = os.fork()
        if child == 0:
            print("child", parallel_submit(abs, -3).result(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print("parent", held.result(), parallel_submit(abs, -4).result())
        """,
    )
    assert said == "child 3\nparent None 4\n"
