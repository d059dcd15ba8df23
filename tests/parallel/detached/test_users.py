"""Detached runs of a user whose id no line of passwd names, as in many containers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.detached.work import ROOT

PROGRAM = """
import sys
from pathlib import Path
from espnet3.parallel.backends import BACKENDS, load_cluster_class
from espnet3.parallel.kube.manifests import new_name
from tests.parallel.detached.work import run_of

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run = run_of(folder, n=4, shards=2, config={"bad": [3, "raise"]})
    assert not run.wait(150).done
    (folder / "repaired").touch()
    run.retry()
    assert run.wait(150).done
    run.cancel()
    assert [each["square"] for each in run.merge()] == [0, 1, 4, 9]
    assert new_name().startswith("espnet3-54321-")
    load_cluster_class(BACKENDS["ssh"])
    import asyncssh
    asyncssh.SSHClientConnectionOptions()
    print("all of it")
"""
NAMED = ("LOGNAME", "USER", "LNAME", "USERNAME")


def test_a_user_without_a_name_submits_retries_and_cancels(tmp_path: Path) -> None:
    """No verb needs the user's name; where it is noted, the number stands for it."""
    nameless = ["unshare", "--user", "--map-user=54321"]
    try:
        subprocess.run([*nameless, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system makes no user namespace: {error}")
    environment = {name: value for name, value in os.environ.items() if name not in NAMED}
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [*nameless, sys.executable, str(tmp_path / "program.py"), str(tmp_path / "a")],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all of it\n", done.stderr
    assert '"cancelled by 54321@' in (tmp_path / "a/run/events.jsonl").read_text()
