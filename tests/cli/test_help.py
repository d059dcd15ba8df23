"""`espnet3-parallel --help`: the list of verbs, without loading them."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from espnet3.parallel import run as run_items
from espnet3_parallel import main as command


def test_the_list_of_verbs_loads_none_of_them() -> None:
    """Neither a verb's module nor Dask, asyncio or the package's metadata, which would take ten times as long."""
    program = (
        "import sys; sys.argv = ['espnet3-parallel', '--help']\n"
        "from espnet3_parallel.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'asyncio', 'distributed', 'dask', 'importlib.metadata', 'omegaconf', 'espnet3.parallel.config'}\n"
        "heavy |= {name for name in sys.modules if name.startswith('espnet3_parallel.') and "
        "name[17:] not in ('main', 'layer')}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in command.VERBS:
        assert f"\n  {name} " in done.stdout


def test_the_verbs_stand_in_the_order_of_a_run_above_the_exit_statuses() -> None:
    """Before, during and after a run, for ESPnet: each verb once; then each exit status with its meaning."""
    said = CliRunner().invoke(command.main, ["--help"]).output
    titles = [
        "Before a run:",
        "During a run:",
        "After a run:",
        "For ESPnet:",
        "Exit status of every command:",
    ]
    places = [said.index(title) for title in [*titles, "\n    75 "]]
    assert places == sorted(places) and said.index("\n  report ") > places[2] > said.index("\n  wait ")
    assert sorted(command.VERBS) == sorted(name for verbs in command._GROUPS.values() for name in verbs)


ASCII = """
import sys
from espnet3_parallel.main import main

for line in sys.argv[1:]:
    try:
        main(line.split(), prog_name="espnet3-parallel")
    except SystemExit as end:
        print(line, "ends with", end.code)
"""


def test_a_terminal_of_ascii_gets_escapes_from_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No verb ends in a traceback where names, items and errors have letters that the terminal does not show."""
    run = tmp_path / "läufe" / "é"
    (tmp_path / "mine.py").write_text(
        "def fail(item):\n    raise ValueError(f'{item}: schlecht ☹')\n", "utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run_items(import_module("mine").fail, ["ä"], output_dir=run, on_error="record", progress=False)
    (tmp_path / "é.yaml").write_text("parallel: {env: local}\n")
    (tmp_path / "é.sh").write_text("cmd='run.pl --größe 1'\n", encoding="utf-8")
    lines = {f"{verb} {run}": 0 for verb in ("status", "wait", "watch", "failures", "report")}
    lines |= {f"{verb} {run}": 1 for verb in ("logs", "submit", "cancel", "retry", "merge", "overlay")}
    lines |= dict.fromkeys(["doctor é.yaml", "plan é.yaml", "migrate é.sh", f"watch {run.parent}"], 0)
    lines |= dict.fromkeys([f"size é.yaml --items 9 --run {run}", f"report {run} -o -"], 0)
    lines[f"replay {run} --all-failed"] = 1  # last: it goes to the folder of the run
    done = subprocess.run(
        [sys.executable, "-c", ASCII, *lines],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.stdout + done.stderr).isascii() and done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    for line, code in lines.items():
        assert f"{ascii(line)[1:-1]} ends with {code}\n" in out, (line, out)
    assert "schlecht \\u2639" in out and "schlecht &#9785;" in out
