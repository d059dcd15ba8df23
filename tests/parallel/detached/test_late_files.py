"""Files that a finished job's host has written and this one does not see yet, as over NFS."""

import os
import random
from pathlib import Path

import pytest

from espnet3.parallel import DetachedRun, FolderInUseError
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState, RunStatus
from espnet3.parallel.ledger.lease import disk_now
from tests.habits import rows
from tests.parallel.detached.test_bad_answers import BadScheduler, age
from tests.parallel.detached.test_standins import submit
from tests.standins import standin
from tests.standins.place import NAMES
from tests.waiting import wait_until

SHARDS = 3


class Disk:
    """Hides files of shards, and has a clock that the test sets."""

    def __init__(self, run: DetachedRun) -> None:
        self.layout = Layout(run.path)
        self.moved: dict[Path, Path] = {}
        self.ahead = 0.0

    def now(self, folder: Path) -> int:
        return disk_now(folder) + int(self.ahead * 1e9)

    def hide(self, shard: int, whole: bool) -> None:
        """Hide a shard's folder, or only its last files."""
        folder = self.layout.shard(shard)
        for file in [folder] if whole else [folder / "done", folder / "mark.json"]:
            self.moved[file] = file.with_name(f"hidden.{shard}.{file.name}")
            os.rename(file, self.moved[file])

    def show(self) -> None:
        """Show everything again."""
        for file, hidden in self.moved.items():
            os.rename(hidden, file)
        self.moved.clear()

    def forget(self) -> None:
        """Remove the notes of ends: nobody has looked yet."""
        for note in self.layout.folder.glob("scheduler/ended.*"):
            note.unlink()


@pytest.mark.parametrize("name", rows([*NAMES], ("htcondor",)))
def test_no_delay_of_files_makes_a_finished_shard_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over random delays within the grace a finished shard is never lost nor submitted again; then it is done."""
    draw = random.Random(name)  # no secret
    with standin(name, slots=SHARDS) as queue:
        run = submit(name, tmp_path, n=SHARDS, shards=SHARDS)
        assert run.wait(600).done
        wait_until(lambda: not queue.unfinished())
        monkeypatch.setenv("ESPNET3_STANDIN", str(queue.folder))
        scheduler = BadScheduler(0)
        scheduler.damaging = False
        monkeypatch.setattr(asking, "ask", scheduler.ask)
        disk = Disk(run)
        monkeypatch.setattr(asking, "disk_now", disk.now)
        for _ in range(5):
            disk.forget()
            disk.ahead = 0.0
            if draw.random() < 0.5:  # nobody has looked for long
                age(run)
            hidden = draw.sample(range(SHARDS), draw.randint(1, SHARDS))
            for shard in hidden:
                disk.hide(shard, whole=draw.random() < 0.3)
            for part in sorted(draw.random() for _ in range(3)):
                status = run.status()
                assert {
                    s.shard: s.state for s in status.shards if s.state is not JobState.DONE
                } == dict.fromkeys(hidden, JobState.UNKNOWN)
                assert "its files are not visible yet" in status.shards[hidden[0]].note
                with pytest.raises(FolderInUseError, match="its files are not visible yet"):
                    run.retry()
                disk.ahead = part * (asking.LATE_FILES - 10)
            disk.show()
            assert run.status().done
        assert run.retry().notes[-1].startswith("nothing was submitted")
        assert len({each.job for each in queue.jobs()}) == 1
        disk.forget()
        disk.ahead = 0.0
        disk.hide(1, whole=False)
        assert run.status().shards[1].state is JobState.UNKNOWN
        disk.ahead = asking.LATE_FILES + 1
        assert run.status().counts == {JobState.DONE: SHARDS - 1, JobState.LOST: 1}
        disk.show()
        monkeypatch.undo()


def test_wait_goes_on_until_late_files_are_there(tmp_path: Path) -> None:
    """`wait` does not end with a shard whose job has ended and whose `done` comes late."""
    with standin("moab", slots=SHARDS) as queue:
        run = submit("moab", tmp_path, n=SHARDS, shards=SHARDS)
        assert run.wait(600).done
        wait_until(lambda: not queue.unfinished())
        disk = Disk(run)
        disk.hide(2, whole=False)
        seen: list[RunStatus] = []

        def look(status: RunStatus) -> None:
            seen.append(status)
            disk.show()

        assert run.wait(600, look).done
        assert seen[0].shards[2].state is JobState.UNKNOWN and seen[0].alive
