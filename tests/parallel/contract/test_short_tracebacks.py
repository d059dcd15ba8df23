"""What a mistake shows besides its words: the caller's lines, and none of this package's or of what carries it."""

from __future__ import annotations

import socket
import stat
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    EnvironmentProvider,
    NoWorkersError,
    SubmissionError,
    WorkerSetupError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from tests.habits import rows
from tests.parallel.contract import work

TWO = {"env": "local", "n_workers": 2}
GUARD = threading.Lock()


class Locked(EnvironmentProvider):
    def __init__(self, guard: Any) -> None:
        super().__init__({})
        self.guard = guard

    def build_env_local(self) -> dict[str, Any]:
        return {"factor": 2}


class Deep:
    def __init__(self) -> None:
        self.inner = {"guard": threading.Lock()}


def shown(error: BaseException) -> str:
    """Return what the interpreter prints of an error."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def foreign(text: str) -> list[str]:
    """Return the lines of a traceback that are not of the tests, but for the one of ours that is always there."""
    files = [line for line in text.splitlines() if line.startswith("  File ")]
    return [line for line in files if "/tests/" not in line and "errors.py" not in line]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: work.Times(Locked(Deep()), progress=False)(range(4)), "guard.inner['guard'] (of type lock)"),
        (lambda: parallel_map(lambda x, guard=None: (x, GUARD), range(4)), "GUARD (of type lock)"),
        (lambda: parallel_map(str, [1, threading.Lock()]), "item 1 of the data"),
        (lambda: parallel_submit(str, threading.Lock()), "the call str("),
    ],
    ids=["inside an object", "lambda", "data", "call"],
)
def test_what_cannot_be_sent_is_named_without_our_frames(call: Any, what: str) -> None:
    """A lock that would have to travel is an error whose note says where it is, under the caller's lines alone."""
    set_parallel(TWO)
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        call()
    assert any(note.startswith(what) and "cannot be sent" in note for note in caught.value.__notes__)
    assert foreign(shown(caught.value)) == []


def test_a_refused_submission_shows_no_frames_of_dask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that refuses the jobs is one error, without the stacks of its two attempts in Dask's event loop."""
    pytest.importorskip("dask_jobqueue")
    refuses = tmp_path / "sbatch"
    refuses.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    refuses.chmod(refuses.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    set_parallel(
        {"env": "slurm", "n_workers": 2, "options": {"cores": 1, "memory": "1GB", "interface": "lo"}}
    )
    with pytest.raises(SubmissionError, match="no such partition") as caught:
        work.Times(work.Provider({"factor": 2}), progress=False)(range(4))
    text = shown(caught.value)
    assert foreign(text) == [] and text.count("no such partition") == 1, text


def test_a_host_that_cannot_be_reached_shows_no_frames_of_dask() -> None:
    """A closed SSH port is one error with the host, the port and the reason, and no chain of causes that repeat it."""
    pytest.importorskip("asyncssh")
    with socket.socket() as taken:  # bound and not listening: nobody else listens there meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        hosts = {"hosts": ["127.0.0.1", "127.0.0.1"], "connect_options": {"port": port}}
        set_parallel({"env": "ssh", "n_workers": 2, "start_timeout": 60, "options": hosts})
        with pytest.raises(NoWorkersError, match=f"no connection to port {port}") as caught:
            work.Times(work.Provider({"factor": 2}), progress=False)(range(4))
    text = shown(caught.value)
    assert foreign(text) == [] and text.count("no connection to port") == 1, text


@pytest.mark.parametrize("workers", rows([1, 2], [2]))
def test_an_env_that_breaks_between_results_shows_no_frames_of_ours(workers: int) -> None:
    """What `parallel_for` raises while it is iterated over stands under the caller's line, as of `parallel_map`."""
    set_parallel({"env": "local", "n_workers": workers})
    with pytest.raises(WorkerSetupError, match="division by zero") as caught:
        list(parallel_for(abs, range(5), setup_fn=lambda: {"model": 1 / 0}))
    assert foreign(shown(caught.value)) == []


def test_a_closed_client_shows_no_frames_of_ours() -> None:
    """A call of a client after its block is an error under the caller's line alone."""
    with get_client({**TWO, "options": {"processes": False}}) as client:
        pass
    with pytest.raises(NoWorkersError, match="client is closed") as caught:
        client.map(abs, [1])
    assert foreign(shown(caught.value)) == []


class Sleeps(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        time.sleep(1000)
        return {}


@pytest.mark.parametrize("workers", rows([1, 2], [2]))
def test_a_setup_that_takes_too_long_shows_the_providers_frames(workers: int) -> None:
    """The message of setup_timeout has the stack from `build_env_local` on, on workers that have loaded its module."""
    set_parallel({"env": "local", "n_workers": workers, "setup_timeout": 8})
    with pytest.raises(WorkerSetupError, match="the provider was here") as caught:
        work.Times(Sleeps({}), progress=False)(range(2))
    stack = str(caught.value).partition("the provider was here")[2]
    assert stack.count("  File ") == 1 and "in build_env_local" in stack, stack


class Bare(EnvironmentProvider):
    def __init__(self, path: str) -> None:
        self.path = path

    def build_env_local(self) -> dict[str, Any]:
        return {"factor": self.config["factor"]}


def test_a_forgotten_constructor_of_the_base_is_named() -> None:
    """A provider without a config says what its __init__ has to call; any other name is missing as in any object."""
    with pytest.raises(WorkerSetupError, match=r"'config': call super\(\).__init__\(...\) in Bare.__init__"):
        work.Times(Bare("x"), progress=False)(range(2))
    with pytest.raises(AttributeError, match="'Bare' object has no attribute 'paht'$"):
        getattr(Bare("x"), "paht")  # noqa: B009  as a typo is
    assert not hasattr(Bare("x"), "config")
