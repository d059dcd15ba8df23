"""The real schedulers: how each is started and stopped, and the `parallel` block that uses it."""

import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.standins.place import NAMES
from tests.waiting import wait_until

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("HOME", "."))
STATE = Path(os.environ.get("ESPNET3_CLUSTERS", HOME))

COMMON = {
    "cores": 1,
    "memory": "400MB",
    "interface": "lo",
    # an address that is not the one meant for "this machine": pilots must connect over TCP
    "scheduler_options": {"host": "127.0.0.2"},
}


@dataclass(frozen=True)
class Lab:
    name: str  # the `env`, and its folder here
    options: dict[str, object] = field(default_factory=dict)
    listing: tuple[str, ...] = ()  # a command that prints the jobs in the queue, or nothing
    by_root: bool = False  # started before the tests, by the root half (inside.sh)

    def start(self, settings: dict[str, str] | None = None) -> dict[str, str]:
        """Start it, with variables for its start.sh, and return the environment variables that reach it."""
        if self.by_root:
            text = (STATE / self.name / "env").read_text()
        else:
            shutil.rmtree(HOME / self.name, ignore_errors=True)
            done = subprocess.run(
                [HERE / self.name / "start.sh", HOME / self.name],
                env={**os.environ, **(settings or {})},
                stdout=subprocess.PIPE,
                text=True,
                timeout=200,
                check=True,
            )
            text = done.stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def stop(self) -> None:
        if not self.by_root:
            subprocess.run([HERE / self.name / "stop.sh", HOME / self.name], timeout=200, check=True)

    def block(self, n_workers: int = 2, **options: object) -> dict[str, object]:
        return {
            "env": self.name,
            "n_workers": n_workers,
            "start_timeout": 120,
            "options": {**self.options, **options},
        }

    def queue(self) -> str:
        if not self.listing:
            return ""
        return subprocess.run(self.listing, capture_output=True, text=True, check=False).stdout.strip()

    def wait_for_empty_queue(self, seconds: float = 600) -> None:
        wait_until(lambda: not self.queue(), seconds, every=0.2, said=self.queue)


USER = getpass.getuser()
SLURM = Lab("slurm", {**COMMON, "queue": "debug", "walltime": "00:10:00"}, ("squeue", "-h"))
SGE = Lab("sge", {**COMMON, "queue": "all.q", "walltime": "00:10:00"}, ("qstat", "-u", "*"), by_root=True)
OAR = Lab(
    "oar",
    {**COMMON, "walltime": "00:10:00", "memory_per_core_property_name": "not_applicable"},
    ("oarstat", "-u", USER),
    by_root=True,
)
HTCONDOR = Lab("htcondor", {**COMMON, "disk": "100MB"}, ("condor_q", "-af:j", "JobStatus"))
SSH = Lab(
    "ssh",
    {
        "hosts": ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"],
        "connect_options": {
            "port": 12222,
            "client_keys": [str(HOME / "ssh" / "key")],
            "known_hosts": str(HOME / "ssh" / "known_hosts"),
        },
        "scheduler_options": {"host": "127.0.0.2", "port": 0},
        "worker_options": {"host": "127.0.0.2", "nthreads": 1},
    },
)
LABS = {lab.name: lab for lab in (SLURM, SGE, OAR, HTCONDOR, SSH)}
STAND_INS = [name for name in NAMES if name not in LABS]  # for schedulers that cannot be installed


def never_to_run(slurm: Lab) -> str:
    """Return a directive of SLURM's with which a job can never run: the job that it waits for has failed."""
    command = ["sbatch", "--parsable", "-o", "/dev/null", "--wrap", "exit 3"]
    job = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    slurm.wait_for_empty_queue()
    return f"--dependency=afterok:{job}"
