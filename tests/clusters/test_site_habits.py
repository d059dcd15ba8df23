"""A site's submit command that prints lines with numbers around its answer, on each real scheduler."""

import logging
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from espnet3.parallel import get_client
from tests.clusters.labs import Lab
from tests.sites import BANNER, habit
from tests.waiting import wait_until

pytestmark = pytest.mark.clusters

# a job that is no run's, as a shell submits it, and what cancels it
OTHERS = {
    "slurm": (["sbatch", "-J", "precious", "-o", "/dev/null", "--wrap", "sleep 600"], "scancel"),
    "sge": (["qsub", "-N", "precious", "-b", "y", "-j", "y", "-o", "/dev/null", "sleep", "600"], "qdel"),
    "oar": (["oarsub", "-n", "precious", "-O", "/dev/null", "-E", "/dev/null", "sleep 600"], "oardel"),
    "htcondor": (["condor_submit", "precious.sub"], "condor_rm"),
}
SUBMIT = {"slurm": "sbatch", "sge": "qsub", "oar": "oarsub", "htcondor": "condor_submit"}
IDS = r"batch job (\d+)|Your job (\d+)|OAR_JOB_ID=(\d+)|to cluster (\d+)"


@pytest.fixture(params=OTHERS)
def site(
    request: pytest.FixtureRequest,
    started: Callable[[str], Lab],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Lab, Callable[[], int]]]:
    """Return a scheduler whose submit command prints the number of another job, and what counts the jobs left."""
    lab = started(request.param)
    text = "batch_name = precious\nexecutable = /bin/sleep\narguments = 600\nqueue 1\n"
    (tmp_path / "precious.sub").write_text(text)
    submit, cancel = OTHERS[lab.name]
    said = subprocess.run(submit, capture_output=True, text=True, check=True).stdout
    job = next(filter(None, re.findall(IDS, said)[0]))
    habit(SUBMIT[lab.name], BANNER.replace("1", job), tmp_path, monkeypatch)

    def left() -> int:
        return len(re.findall(rf"^\s*{job}\b", lab.queue(), re.MULTILINE))

    monkeypatch.setenv("OTHER", job)
    yield lab, left
    subprocess.run([cancel, job], check=True, capture_output=True)
    lab.wait_for_empty_queue()


def test_a_job_of_another_name_is_left_alone(
    site: tuple[Lab, Callable[[], int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the site's answer has another job's number, the queue's name of that job keeps it from being cancelled."""
    lab, left = site
    (tmp_path / "wrong").mkdir()
    wrong = r'"$OWN" "$@" | sed -E "s/(batch job |Your job |OAR_JOB_ID=|cluster )[0-9]+/\1$OTHER/"'
    habit(SUBMIT[lab.name], wrong, tmp_path / "wrong", monkeypatch)
    with caplog.at_level(logging.WARNING), get_client(lab.block(1)) as client:
        client.wait_for_workers(1, timeout=600)
    assert "is 'precious' in the queue" in caplog.text
    wait_until(lambda: left() == 1 and len(lab.queue().splitlines()) <= 3, said=lab.queue)
