"""Habits of sites, put around a scheduler's own commands: shell code that runs in place of one of them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SUBMIT = {"pbs": "qsub", "lsf": "bsub", "moab": "msub", "htcondor": "condor_submit", "slurm": "sbatch"}
CANCEL = {"pbs": "qdel", "lsf": "bkill", "moab": "canceljob", "htcondor": "condor_rm", "slurm": "scancel"}
# numbers of every kind that sites print, each once more than the id of any job of a test
BEFORE = (
    "echo '--> Verifying valid submit host (login1)...OK'; echo 'MEMLIMIT set to 1 MB'; echo '1 of 1 checks passed'; "
    "echo 'job 1 of today, see https://help.example.org/1'; echo \"Your quota of 1 TB: 1%\""
)
AFTER = "echo 'ticket 1: maintenance on day 1'; echo '[1] all is well'"
BANNER = f'{BEFORE}; "$OWN" "$@"; code=$?; {AFTER}; exit $code'


def habit(command: str, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put shell code in place of a command, in which `"$OWN" "$@"` is the command itself; return its folder.

    The code finds a folder of its own in `$MINE`.
    """
    own = shutil.which(command)
    programs = folder / f"site-{command}"
    programs.mkdir()
    script = programs / command
    script.write_text(f'#!/bin/sh\nOWN="{own}"\nMINE="{programs}"\n{code}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def somebody_elses(env: str, folder: Path) -> None:
    """Submit a job that is no run's, called `precious`: the first one that a stand-in has, its number 1."""
    script = folder / "precious.sh"
    name = {"pbs": "#PBS -N precious", "moab": "#PBS -N precious", "lsf": "#BSUB -J precious"}.get(env, "")
    script.write_text(f"#!/bin/sh\n{name}\nexec sleep 1000\n")
    script.chmod(0o755)
    words, text = [SUBMIT[env], str(script)], None
    if env == "htcondor":
        (folder / "precious.sub").write_text(
            f"batch_name = precious\nexecutable = {script}\noutput = /dev/null\nqueue 1\n"
        )
        words = [SUBMIT[env], str(folder / "precious.sub")]
    elif env == "lsf":
        words, text = [SUBMIT[env]], script.read_text()
    subprocess.run(words, cwd=folder, input=text, text=True, check=True, capture_output=True)
