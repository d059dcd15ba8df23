"""A scheduler's commands, where they print more than usual, refuse or hang: one test for both users of them."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, ParallelError, SubmissionError, get_client
from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.jobs import commands
from tests.habits import rows
from tests.parallel.clusters.test_arrays import STANDINS, block, count_submissions
from tests.parallel.detached.test_standins import submit
from tests.sites import BANNER, BEFORE, SUBMIT, habit, somebody_elses
from tests.standins import StandIn, standin
from tests.waiting import wait_until

LOOKS = {"pbs": "qstat", "lsf": "bjobs", "moab": "showq", "htcondor": "condor_q"}
FIXES = {"slurm": "SLURM_CLUSTERS", "pbs": "PBS_SERVER", "htcondor": "_CONDOR_SCHEDD_HOST"}
# what a user of the room does: jobs are submitted, and cancelled before it returns
User = Callable[..., None]


def driver(env: str, n: int, folder: Path, **options: Any) -> None:
    config = {**block(env, n), "start_timeout": 600}
    with get_client({**config, "options": {**config["options"], **options}}) as client:
        client.wait_for_workers(n, timeout=600)


def detached(env: str, n: int, folder: Path, **options: Any) -> None:
    run = submit(env, folder, n, n, **options)
    run.cancel(grace=0.2)


both = pytest.mark.parametrize("use", [driver, detached])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def left(queue: StandIn) -> list[int]:
    return sorted({each.job for each in queue.unfinished()})


@both
@pytest.mark.parametrize(("env", "n"), rows([(env, n) for env in STANDINS for n in (1, 2)], [("lsf", 2)]))
def test_numbers_around_the_answer_are_no_jobs(
    env: str, n: int, use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the submit command prints lines with numbers, the run's own jobs end with it, and no other job."""
    with standin(env) as queue:
        somebody_elses(env, tmp_path)
        habit(SUBMIT[env], BANNER, tmp_path, monkeypatch)
        use(env, n, tmp_path)
        wait_until(lambda: left(queue) == [1], said=queue.unfinished)
        assert len(queue.jobs()) == 1 + n


@both
@pytest.mark.parametrize("env", rows(STANDINS, ("moab",)))
def test_a_job_of_another_name_is_left_alone(
    env: str, use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An id whose job the queue calls otherwise is not cancelled, and that is said with both names."""
    said = ""
    with standin(env) as queue:
        somebody_elses(env, tmp_path)
        # an answer of the right form, with another job's number
        with monkeypatch.context() as site:
            habit(SUBMIT[env], '"$OWN" "$@" | sed "s/2/1/g"', tmp_path, site)
            try:
                use(env, 1, tmp_path)
            except ParallelError as error:
                said = str(error)
        assert 1 in left(queue)
        queue.cancel_all()
    assert "is 'precious' in the queue, not" in said + caplog.text


@both
@pytest.mark.parametrize("env", rows(STANDINS, ("htcondor",)))
def test_an_answer_without_an_id_is_shown(
    env: str, use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has what the submit command printed, says that a job may be queued, and how to look for it."""
    with standin(env, slots=0) as queue:
        habit(SUBMIT[env], f'"$OWN" "$@" >"$MINE/said"; {BEFORE}', tmp_path, monkeypatch)
        with pytest.raises(SubmissionError) as error:
            use(env, 2, tmp_path)
        assert len(queue.unfinished()) == 2
    text = str(error.value)
    assert "a job may have been queued" in text and "no job was queued" not in text
    assert "MEMLIMIT set to 1 MB" in text and LOOKS[env] in text


@both
@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("slurm", {"job_extra_directives": ["--hold --clusters=a,b"]}, "--clusters=a,b"),
        ("slurm", {"job_script_prologue": ["#SBATCH -M other"]}, "-M other"),
        ("slurm", {"SBATCH_CLUSTERS": "other"}, "SBATCH_CLUSTERS=other"),
        ("slurm", {"SLURM_CLUSTERS": "a,b"}, "SLURM_CLUSTERS=a,b"),
        ("pbs", {"queue": "gpu@elsewhere"}, "-q gpu@elsewhere"),
        ("htcondor", {"submit_command_extra": ["-name", "other"]}, "-name other"),
    ],
    ids=lambda each: str(next(iter(each.values()))) if isinstance(each, dict) else None,
)
def test_another_cluster_is_refused(
    env: str, options: dict[str, Any], said: str, use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option or variable that sends jobs where no command looks for them is an error, and nothing is written."""
    for variable in filter(str.isupper, options):
        monkeypatch.setenv(variable, options[variable])
    with pytest.raises(ConfigError, match=rf"{said} sends jobs to another cluster.*set {FIXES[env]}"):
        use(env, 2, tmp_path, **{name: value for name, value in options.items() if name.islower()})
    assert os.listdir(tmp_path) == []


@both
def test_a_command_that_hangs_is_ended(use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit command has a limit of time; what it has started ends with it."""
    monkeypatch.setattr(commands, "SECONDS", 10.0)
    with standin("pbs"):
        mine = habit("qsub", 'sleep 1000 & echo $! >"$MINE/pid"; wait', tmp_path, monkeypatch)
        with pytest.raises(SubmissionError, match="did not answer within 10 s"):
            use("pbs", 2, tmp_path)
        pid = int((mine / "pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


@both
def test_the_sites_limit_of_an_array_is_asked(
    use: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs are two arrays where the server allows two elements."""
    server = 'case "$1" in -Bf) echo "    max_array_size = 2" ;; *) exec "$OWN" "$@" ;; esac'
    with standin("pbs") as queue:
        habit("qstat", server, tmp_path, monkeypatch)
        calls = count_submissions("pbs", tmp_path, monkeypatch)
        use("pbs", 4, tmp_path)
        assert calls.read_text().split() == ["call", "call"]
        assert sorted(each.index or 0 for each in queue.jobs()) == [0, 0, 1, 1]


@both
@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("exit 1", "An array was taken to have 1001 elements at most, as usual: 'qstat -Bf' names no limit"),
        ('echo "    max_array_size = 9"', "'qstat -Bf' allows an array 9 elements"),
        ("sleep 1000", "as usual, because 'qstat -Bf' did not answer"),
    ],
    ids=["no answer", "answer", "hangs"],
)
def test_a_limit_that_was_too_high_is_named(
    server: str,
    said: str,
    use: User,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where an array is refused, the message says how large it was thought to be allowed, and by what."""
    monkeypatch.setattr(commands, "_LIMIT_SECONDS", 1.0 if server.startswith("sleep") else 60.0)
    refuse = 'grep -q "^#PBS -J" "$1" && { echo "qsub: array too large" >&2; exit 1; }'
    text = ""
    with standin("pbs"), caplog.at_level(logging.WARNING):
        habit("qstat", f'case "$1" in -Bf) {server} ;; *) exec "$OWN" "$@" ;; esac', tmp_path, monkeypatch)
        count_submissions("pbs", tmp_path, monkeypatch, refuse)
        with suppress(ParallelError):
            try:
                use("pbs", 2, tmp_path)
            except SubmissionError as error:
                text = str(error)
    assert "array too large" in text + caplog.text
    assert said in text + caplog.text


OUTPUTS = """
slurm 7_3: out-7_3.txt w-7_3.err != out-7_30.txt out-17_3.txt w-7_4.err out-3_7.txt job.7.sh ended.7_3
pbs 7[0]: run-3.o7.0 run.o7[0] run.o7 7[0].out != run.o7.1 run.o17.0 run-7.o12.0 7[1].out array.7.json
pbs 7: run.o7 7.out != run-7.o12 run.o77 job.7.sh ended.7 array.7.json
sge 7.12: run.o7.12 w.e7.12 != run.o7.1 run.o7.121 run.o12.7
htcondor 7.0: out-7_0.txt worker-7.0.err != log-7_0.log worker-7.1.err
moab Moab.7[2]: run.oMoab.7-2 != run.oMoab.7-1
oar 7: OAR.run3.7.stdout OAR.7.out != OAR.run.17.stdout OAR.7.run.8.stdout
"""


@pytest.mark.parametrize("line", OUTPUTS.strip().splitlines())
def test_the_output_of_a_job_is_found_by_its_id(line: str, tmp_path: Path) -> None:
    """Files of a driver's job and of a detached one are told from those of other jobs, and from our own notes."""
    name, job, *files = line.replace(":", "", 1).split()
    for file in [file for file in files if file != "!="]:
        (tmp_path / file).write_text("text")
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None
    found = commands.Outputs(scheduler, [tmp_path]).of(job)
    assert sorted(file.name for file in found) == sorted(files[: files.index("!=")])


HELD = """
17[].host root batch run -- 1 4 8gb 04:00 H --
17[0].host root batch run 100 1 4 8gb 04:00 R 00:01
17[1].host root batch run -- 1 4 8gb 04:00 Q --
18[].host root batch run -- 1 4 8gb 04:00 Q --
18[0].host root batch run -- 1 4 8gb 04:00 Q --
"""


def test_what_waits_in_a_held_array_is_held() -> None:
    """PBS lists the elements of an array that is held as queued: they say `held` all the same."""
    pbs = BACKENDS["pbs"].scheduler
    assert pbs is not None
    listing = commands.Listing(pbs.read(HELD), {}, "", failed=False)
    views = [listing.answer(pbs, element) for element in ("17[0]", "17[1]", "18[0]")]
    assert [view.note for view in views if view] == ["R", "held (H)", "Q"]
    assert [view.meaning.job.name for view in views if view] == ["RUNNING", "HELD", "WAITING"]
