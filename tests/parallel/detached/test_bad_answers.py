"""Answers of a scheduler that are cut short, stale, empty or errors: no live shard is lost by any of them."""

import contextlib
import io
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from espnet3.parallel import DetachedRun, FolderInUseError
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.launch.asking import Said
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.files import make_folder
from tests.habits import rows
from tests.parallel.detached.test_standins import submit
from tests.standins import standin
from tests.standins.__main__ import COMMANDS
from tests.standins.jobs import Store
from tests.standins.place import NAMES

ENDED = (0, 1)  # the shards whose jobs have ended without a word
LONG_AGO = 600  # seconds: far beyond the silence after which "no such job" is believed


class BadScheduler:
    """The commands of a stand-in, called in this process; what they print is damaged at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # no secret
        self.damaging = True
        self.before: dict[str, list[Said]] = {}

    def ask(self, command: list[str], folder: Path, stdin: str | None = None) -> Said:
        """Return what a command prints, or something like it."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = COMMANDS[command[0]](command[1:])
        said = Said(" ".join(command), status, out.getvalue(), error.getvalue())
        seen = self.before.setdefault(said.command, [])
        seen.append(said)
        if not self.damaging:
            return said
        kinds: list[Callable[[], Said]] = [
            lambda: said,
            lambda: replace(said, out=self.some_lines(said.out), error=self.some_lines(said.error)),
            lambda: replace(said, out=said.out[: self.random.randint(0, len(said.out))]),
            lambda: replace(said, out="", error="", status=0),
            lambda: replace(said, out="", error="cannot connect to the server", status=0),
            lambda: replace(said, out="", error="cannot connect to the server", status=1),
            lambda: self.random.choice(seen),
        ]
        return self.random.choice(kinds)()

    def some_lines(self, text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if self.random.random() < 0.6)


def age(run: DetachedRun) -> None:
    """Make every file of a run old: no shard has given a sign of life for long."""
    for file in run.path.rglob("*"):
        seconds = file.stat().st_mtime - LONG_AGO
        os.utime(file, (seconds, seconds))


@pytest.mark.parametrize("name", rows([*NAMES], ("moab",)))
def test_no_damage_makes_a_live_shard_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over random partial, stale, empty and wrong answers live shards stay alive; `retry` refuses; ended ones show."""
    with standin(name, slots=0) as queue:
        run = submit(name, tmp_path, n=6, shards=6)
        monkeypatch.setenv("ESPNET3_STANDIN", str(queue.folder))
        store = Store(queue.folder)
        with store.locked():
            for at, each in enumerate(queue.jobs()):
                if at in ENDED:
                    store.save(replace(each, state="done", exit_code=137, started=1.0))
                    make_folder(Layout(run.path).shard(at))  # that it had begun: no other job takes it
                    (Layout(run.path).shard(at) / "lease.1.json").write_text(f'{{"run_id": "shard {at}"}}')
        age(run)
        monkeypatch.setattr(asking, "LATE_FILES", -1.0)  # nothing of them is late
        for seed in range(4):
            scheduler = BadScheduler(seed)
            monkeypatch.setattr(asking, "ask", scheduler.ask)
            for _ in range(5):
                states = [shard.state for shard in run.status().shards]
                assert all(states[at].alive for at in range(6) if at not in ENDED), (seed, states)
                assert all(states[at] in (JobState.LOST, JobState.UNKNOWN, JobState.PENDING) for at in ENDED)
            with pytest.raises(FolderInUseError):
                run.retry()
            scheduler.damaging = False
            states = [shard.state for shard in run.status().shards]
            assert [at for at, state in enumerate(states) if state is JobState.LOST] == [*ENDED], states
        assert len({each.job for each in queue.jobs()}) == 1
        monkeypatch.undo()
        run.cancel(grace=0.2)


@pytest.mark.parametrize("name", rows([*NAMES], ("htcondor",)))
def test_a_job_that_nobody_knows_is_lost_only_after_a_silence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the submission a scheduler that has no such job may be slow; a while later the shards are lost."""
    with standin(name, slots=0) as queue:
        run = submit(name, tmp_path)
        monkeypatch.setenv("ESPNET3_STANDIN", str(queue.folder))
        queue.cancel_all()
        for file in queue.folder.glob("*.*.json"):
            file.unlink()  # it was installed anew, and has forgotten everything
        status = run.status()
        assert status.counts == {JobState.UNKNOWN: 3}
        assert "counts as ended after 60 s" in status.shards[0].note
        age(run)
        assert run.status().counts == {JobState.LOST: 3}
        assert "no longer has job" in run.status().shards[0].note
