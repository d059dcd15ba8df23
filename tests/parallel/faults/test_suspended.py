"""A run that is stopped as a whole and goes on: by a scheduler's suspend, or with the machine that it runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.parallel.detached.work import ROOT

PROGRAM = """
import os, sys
from pathlib import Path
from typing import Any
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

def wait_in(folder):
    (folder / "begun").write_text(str(os.getpid()))  # opens when the test reads
    (folder / "go").read_text()  # opens when the test writes

class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        folder = Path(self.config["folder"])
        if self.config["at"] == "env":
            wait_in(folder)
        return {"folder": folder, "at": self.config["at"]}

class Squares(BaseRunner):
    @staticmethod
    def forward(idx: int, folder: Path, at: str) -> int:
        if at == "item" and idx == 0:
            wait_in(folder)
        return idx * idx

if __name__ == "__main__":
    folder, at, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1}})
    limit = {"item_timeout" if at == "item" else "setup_timeout": float(sys.argv[4])}
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(
        Provider({"folder": str(folder), "at": at}), on_error="record", progress=False,
        async_mode=how == "detached", **folders, **limit,
    )
    found = runner(range(4))
    if how == "detached":
        assert found.wait(150).done, (found.status(), dict(found.logs()))
        found = found.merge()
    print(list(found))
"""
LIMIT = 6.0  # seconds: long against all that is not the stop, also on a busy machine


def processes_of(program: int, held: int) -> list[psutil.Process]:
    """Return a program, its job and all that belongs to them; those that watch come last."""
    found = [psutil.Process(program), *psutil.Process(program).children(recursive=True)]
    session = psutil.Process(os.getsid(held))
    found += [session, *session.children(recursive=True)]
    return sorted(set(found), key=lambda process: process.pid != held)


@pytest.mark.parametrize(
    ("at", "how"),
    [("item", "detached"), ("env", "driver")],
)
def test_time_in_which_all_is_stopped_does_not_count(at: str, how: str, tmp_path: Path) -> None:
    """An item, or an env, is not late because its run was stopped for longer than the limit and then went on."""
    (tmp_path / "program.py").write_text(PROGRAM)
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path), at, how, str(LIMIT)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        stopped = processes_of(program.pid, int((tmp_path / "begun").read_text()))
        for process in reversed(stopped):
            process.send_signal(signal.SIGSTOP)
        time.sleep(LIMIT + 2)  # this time is what the test is about; a driver gives a worker a second more
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        (tmp_path / "go").write_text("go")
        said, _ = program.communicate(timeout=150)
    assert said == "[0, 1, 4, 9]\n"
