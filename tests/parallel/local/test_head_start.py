"""The first run's processes begin to start before the driver has loaded what the run needs."""

from pathlib import Path

from tests.parallel.contract.helpers import run_script

PROGRAM = """
import os, subprocess, sys
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

begun = []
popen = subprocess.Popen

class Watched(popen):
    def __init__(self, *args, **kwargs):
        begun.append((self, {m for m in sys.modules if m.startswith("espnet3.parallel.")}))
        super().__init__(*args, **kwargs)

subprocess.Popen = Watched

class P(EnvironmentProvider):
    def build_env_local(self):
        return {"seen": os.environ.get("LATE")}

class R(BaseRunner):
    @staticmethod
    def forward(idx, seen):
        return idx, seen

set_parallel({"env": "local", "n_workers": 2})
"""


def test_the_server_starts_before_the_rest_is_loaded(tmp_path: Path) -> None:
    """One server is started, before the driver has loaded what hands out items, by runners and by `parallel_map`."""
    for call in ("R(P({}), progress=False)(range(3))", "parallel_map(abs, [-1, 2])"):
        code = f"""
from espnet3.parallel import parallel_map
print({call})
(server, before), = begun
print("espnet3.parallel.pilots.driver" in before, "espnet3.parallel.pilots.driver" in sys.modules)
"""
        assert run_script(tmp_path, PROGRAM + code).splitlines()[1] == "False True", call


def test_a_run_that_comes_to_nothing_leaves_no_server(tmp_path: Path) -> None:
    """Where the indices are wrong, or there is none, the server that was begun has ended when the call returns."""
    for call, said in (("R(P({}), progress=False)(3)", "TypeError"), ("parallel_map(abs, [])", "[]")):
        code = f"""
from espnet3.parallel import parallel_map
try:
    print({call})
except TypeError as error:
    print("TypeError")
(server, _), = begun
print("ended" if server.returncode is not None else "left")
"""
        assert run_script(tmp_path, PROGRAM + code).splitlines() == [said, "ended"]


def test_what_the_indices_change_is_seen_by_the_workers(tmp_path: Path) -> None:
    """A variable or folder that is set while the indices are made is that of the workers, as without a head start."""
    code = """
def indices():
    os.environ["LATE"] = "set"
    yield from range(2)

print(R(P({}), progress=False)(indices()))
"""
    assert run_script(tmp_path, PROGRAM + code).splitlines() == ["[(0, 'set'), (1, 'set')]"]
