"""A machine with as many GPUs as a test wants, by a stand-in of NVML's library: NO CUDA IS RUN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

WORK = """
import json, os, sys, time
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def build_worker_setup_fn(self):
        return self.build_env_local

class Runner(BaseRunner):
    @staticmethod
    def forward(index, gpus):
        time.sleep(0.05)
        return [os.getpid(), gpus]
"""

CALL = """
found = Runner(Provider(), progress=False)(range(N * 8))
print(json.dumps(sorted({gpus for _, gpus in found})))
"""


def build_nvml(folder: Path) -> Path:
    """Compile the stand-in; return the folder to look for libraries in."""
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)]
    subprocess.run([*command, str(HERE / "nvml_stub.c")], check=True)
    return folder


class Machine:
    """Runs programs as if this machine had GPUs.

    Args:
        nvml: What `build_nvml` returned.
        folder: Where programs run.
    """

    def __init__(self, nvml: Path, folder: Path) -> None:
        self.nvml = nvml
        self.folder = folder

    def environment(self, gpus: str | None, visible: str | None = None) -> dict[str, str]:
        """Return the variables of a process; `gpus` as NVML_STUB, `visible` as CUDA_VISIBLE_DEVICES."""
        ours = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        ours["LD_LIBRARY_PATH"] = str(self.nvml)
        if gpus is not None:
            ours["NVML_STUB"] = gpus
        if visible is not None:
            ours["CUDA_VISIBLE_DEVICES"] = visible
        return ours

    def run(
        self, text: str, gpus: str | None, visible: str | None = None, *, stdin: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as a script without a main guard, or from stdin."""
        command = [sys.executable, "-"]
        if not stdin:
            script = self.folder / "script.py"
            script.write_text(text)
            command = [sys.executable, str(script)]
        return subprocess.run(
            command,
            input=text if stdin else None,
            cwd=self.folder,
            env=self.environment(gpus, visible),
            capture_output=True,
            text=True,
            timeout=600,  # a busy machine
            check=False,
        )

    def pins(self, n_workers: int, gpus: str | None, visible: str | None = None, **how: bool) -> list[str]:
        """Return the values of CUDA_VISIBLE_DEVICES that the workers of a run saw."""
        block = {"env": "local_gpu", "n_workers": n_workers}
        done = self.run(program(block, CALL), gpus, visible, **how)
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout)
        return found


def program(block: dict[str, object], call: str) -> str:
    """Return a script that registers a block and then does what `call` says."""
    return f"{WORK}\nN = {block['n_workers']}\nset_parallel({block!r})\n{call}"
