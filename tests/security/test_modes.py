"""Whatever the umask is, what a run writes is for its owner alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.habits import rows

SCRIPT = """
import os, sys
os.umask(0)
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}
class Runner(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        return idx
class Files(Runner):
    @staticmethod
    def open_writers(shard_dir, **env):
        return {}
    @staticmethod
    def write_record(writers, result, state, **env):
        pass
if __name__ == "__main__":
    kind = sys.argv[1]
    detached = {"detached": {"snapshot": True}} if kind == "detached" else {}
    set_parallel({"env": "local", "n_workers": 2, **detached})
    runner = (Files if kind == "files" else Runner)(
        Provider({}), output_dir="run", async_mode=kind == "detached", on_error="record"
    )
    found = runner(range(100))
    if kind == "detached":
        found.wait()
        found.merge()
"""


@pytest.mark.parametrize("kind", rows(["driver", "files", "detached"], ["files", "detached"]))
def test_with_umask_0_every_file_of_a_run_is_its_owners(kind: str, tmp_path: Path) -> None:
    """Results, logs, specs, copies of code, supervisors' files and the folders they are in: 0600 and 0700."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/module.py").write_text("")
    subprocess.run([sys.executable, "script.py", kind], cwd=tmp_path, check=True, capture_output=True)
    made = [
        path
        for path in tmp_path.rglob("*")
        # the caller's own files, and Python's cache of the script, which is made by the umask whoever imports it
        if path.relative_to(tmp_path).parts[0] not in ("script.py", "beside", "__pycache__")
        and not path.is_symlink()
    ]
    assert len(made) > 5
    open_to_others = [(str(path), oct(path.lstat().st_mode)) for path in made if path.lstat().st_mode & 0o077]
    assert open_to_others == []
