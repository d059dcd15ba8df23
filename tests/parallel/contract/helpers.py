"""What the tests here share: scripts in fresh interpreters, and looks at processes and files."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

import espnet3

REPOSITORY = Path(espnet3.__file__).resolve().parents[1]
TWO = {"env": "local", "n_workers": 2}
GUARD = 600  # seconds until a script counts as hanging, beside any load


def clean_environment(**more):
    """Return the environment of a shell in which only this checkout was added to the path."""
    of_a_shell = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {
        **of_a_shell,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **more,
    }


def beside_espnet(monkeypatch, folder):
    """Have `espnet3.systems` be another's than ours in this process, as where ESPnet is installed."""
    (folder / "espnet" / "systems").mkdir(parents=True)
    (folder / "espnet" / "systems" / "__init__.py").touch()
    monkeypatch.setattr(espnet3, "__path__", [str(folder / "espnet"), *espnet3.__path__])
    for name in [name for name in sys.modules if name.startswith("espnet3.systems")]:
        monkeypatch.delitem(sys.modules, name)


def start_script(folder, code, *, python=None, stdin=False, cwd=None, name="script.py", **environment):
    """Save code as a file and start it, or what `python` names; nothing but its own folder is on its path."""
    path = Path(folder) / name
    path.write_text(textwrap.dedent(code))
    return subprocess.Popen(
        [sys.executable, *(python or [str(path)])],
        cwd=cwd or folder,
        env=clean_environment(**environment),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process, given=None):
    """Wait for a started script, and return its result; a hang is a failure that shows where."""
    try:
        out, err = process.communicate(given, timeout=GUARD)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler shows where every thread is
        out, err = process.communicate()
        pytest.fail(f"the script hangs\n--- stdout\n{out[-2000:]}\n--- stderr\n{err[-8000:]}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_script(folder, code, **options):
    """Run code as a script to its end and return what it printed.

    An uncaught exception in it fails the test with its traceback.
    """
    done = finish(start_script(folder, code, **options))
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def children():
    return {p for p in psutil.Process().children(recursive=True) if _lives(p)}


def _lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lines(folder, name="log"):
    path = Path(folder) / name
    return path.read_text().splitlines() if path.exists() else []
