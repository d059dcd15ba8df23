"""One round: a detached run on SLURM is disturbed some times, brought to its end, and looked at."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from espnet3.parallel import set_parallel
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState, RunStatus
from espnet3.parallel.ledger.merge import read_receipt
from tests.clusters.chaos_slurm import queue
from tests.clusters.chaos_slurm.kinds import KINDS
from tests.clusters.chaos_slurm.program import Items, Provider, holder, runs, workers
from tests.clusters.labs import SLURM
from tests.parallel.detached.work import ROOT, calls

N, SHARDS, WORKERS = 60, 6, 4
_SECONDS = 0.4  # of an item
_MISSED = 30  # seconds for which SLURM may call a job running that no node has
_FORGOTTEN = 60  # seconds for the queue to be empty by itself
_PATIENCE = 400  # seconds for a run to end once nobody disturbs it: what is forgotten is lost after a minute


class WrongError(AssertionError):
    pass


@dataclass
class Played:
    seed: int
    home: Path
    done: list[str] = field(default_factory=list)  # the kind of each disturbance
    again: int = 0  # items that were computed again
    missed: int = 0  # jobs whose end SLURM has missed, and which it called running until they were cancelled
    story: list[str] = field(default_factory=list)
    wrong: str = ""


def play(seed: int, home: Path, disturbances: int, expected: bytes) -> Played:
    round_ = Round(seed, home)
    try:
        round_.play(disturbances, expected)
    except (AssertionError, subprocess.TimeoutExpired, OSError, RuntimeError) as error:
        round_.played.wrong = f"{type(error).__name__}: {error}"
    finally:
        round_.close()
    return round_.played


def reference(home: Path) -> bytes:
    """Return the merged file of an undisturbed run in this process."""
    home.mkdir()
    set_parallel(None)
    Items(Provider({"folder": str(home), "seconds": 0}), output_dir=home / "run", progress=False)(range(N))
    return (home / "run/results.jsonl").read_bytes()


class Round:
    def __init__(self, seed: int, home: Path) -> None:
        self.draw = random.Random(seed)
        self.home = home
        # items whose process was killed: done twice to one, it would take the blame
        self.killed: set[int] = set()
        self.played = Played(seed, home)
        self._begin = time.monotonic()
        home.mkdir()
        # each kind comes up equally often, over all rounds
        self._kinds = [KINDS[(seed * 7 + k) % len(KINDS)] for k in range(len(KINDS))]
        self.draw.shuffle(self._kinds)
        set_parallel({**SLURM.block(WORKERS), "detached": {"shards": SHARDS}})
        folders = {"output_dir": home / "run", "async_specs_dir": home / "specs", "async_mode": True}
        provider = Provider({"folder": str(home), "seconds": _SECONDS})
        self.run: DetachedRun = Items(provider, **folders, progress=False)(range(N))
        self.name = f"espnet3-{next((home / 'specs').iterdir()).name}"
        self._since: dict[str, float] = {}

    # --- what the kinds use ---

    def say(self, line: str) -> None:
        self.played.story.append(f"  {time.monotonic() - self._begin:6.1f} s  {line}")

    def expect(self, right: bool, what: str) -> None:
        if not right:
            raise WrongError(what)

    def verb(self, *words: str) -> subprocess.Popen[str]:
        """Call a verb of the command line, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "espnet3_parallel", words[0], self.run.path, *words[1:]],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: subprocess.Popen[str]) -> int:
        """Wait for a verb; return its exit status. It says what it has to say in a sentence."""
        out, error = process.communicate(timeout=240)
        self.expect("Traceback" not in out + error, f"{process.args}: {out[-2000:]}{error[-4000:]}")
        if process.returncode == 1 and error.strip():
            self.say(error.strip().splitlines()[-1][:300])
        return process.returncode

    def none_lost(self, shards: Iterable[int], who: str) -> None:
        """Fail the round if a shard that is called lost is in the queue, or at work."""
        jobs = {self.run[shard].job_id: shard for shard in shards}
        wrong = jobs.keys() & queue.elements(self.name).keys()
        per_shard = N // SHARDS
        at_work = {idx // per_shard for idx in workers(self.home).values()} & set(jobs.values())
        self.expect(
            not wrong, f"{who} calls lost what is in the queue: {sorted(wrong)} {queue.elements(self.name)}"
        )
        self.expect(not at_work, f"{who} calls lost what is at work: shards {sorted(at_work)}")

    def status(self) -> RunStatus:
        """Look at the run; what is lost must be."""
        status = self.run.status()
        self.none_lost((s.shard for s in status.shards if s.state is JobState.LOST), "status")
        return status

    # --- a round ---

    def play(self, disturbances: int, expected: bytes) -> None:
        bound = 0
        for kind in [*self._kinds, *self._kinds][:disturbances]:
            if self._step(self.draw.uniform(0, 1.5)):
                break
            did = kind.do(self)
            self.say(f"{kind.name}: {did or 'there is nothing to do it to'}")
            if did:
                self.played.done.append(kind.name)
                bound += {"none": 0, "one": 1, "all": WORKERS}[kind.lose]
        self.say("undisturbed")
        end = time.monotonic() + _PATIENCE
        while not self._step(0.2):
            self._miss()
            self.expect(
                time.monotonic() < end, f"it did not end: {self.run.status()} {queue.elements(self.name)}"
            )
        self.run.merge()
        self.say("merged")
        self._compare(expected, bound)

    def _miss(self) -> None:
        """Cancel what SLURM calls running for half a minute, and no node has a process of.

        A slurmctld that was killed before it had saved a job's end says so for longer than a round is waited for.
        """
        running = {one for one, (state, _) in queue.elements(self.name).items() if state == "RUNNING"}
        self._since = {
            one: self._since.get(one, time.monotonic()) for one in running if not queue.has_steps(one)
        }
        for one in [one for one, since in self._since.items() if time.monotonic() - since > _MISSED]:
            self.say(f"SLURM has missed the end of {one}: scancel")
            self.played.missed += 1
            queue.said("scancel", one)

    def _step(self, seconds: float) -> bool:
        """Let time pass, as somebody does who waits and submits what is missing; whether all is done."""
        time.sleep(seconds)  # the moment of a disturbance is drawn
        queue.resume()
        queue.hurry()
        status = self.status()
        if not status.done and not status.alive:
            left = [f"{s.shard} {s.state.value}" for s in status.shards if s.state is not JobState.DONE]
            self.say(f"retry of {', '.join(left)}")
            self.run.retry()
        return status.done

    def _compare(self, expected: bytes, bound: int) -> None:
        counted = calls(self.home)
        self.played.again = sum(counted.values()) - len(counted)
        receipt = read_receipt(self.run.path)
        self.expect((receipt.planned, receipt.ok, receipt.repeated) == (N, N, 0), str(receipt))
        self.expect((self.run.path / "results.jsonl").read_bytes() == expected, "the merged file is another")
        twice = [mark.read_text() for mark in self.home.glob("twice.*")]
        self.expect(not twice, f"items ran in two processes at the same time: {twice}")
        self.expect(set(counted) == set(range(N)), f"items that never ran: {set(range(N)) - set(counted)}")
        self.expect(
            self.played.again <= bound,
            f"{self.played.again} items ran again, and {bound} may have been in flight",
        )
        end = time.monotonic() + _FORGOTTEN
        while queue.elements(self.name) and time.monotonic() < end:
            queue.hurry()  # what SLURM could not start is held for an administrator; once released it finds all done
            time.sleep(0.5)
        if left := queue.elements(self.name):
            # a slurmctld that was killed before it had saved the end of a job calls it running until its walltime
            self.say(f"SLURM has missed the end of {left}: cancel")
            self.expect(
                not any(map(queue.has_steps, left)), f"a job of a run that is done has a process: {left}"
            )
            self.played.missed += len(left)
            self.run.cancel(grace=1)
        self.expect(not queue.elements(self.name), f"left in the queue: {queue.elements(self.name)}")

    def close(self) -> None:
        queue.start_controller()
        queue.resume()
        queue.said("scancel", "--user", str(os.getuid()))
        end = time.monotonic() + 90
        while queue.elements() and time.monotonic() < end:
            queue.hurry()
            time.sleep(0.2)
        for mark in self.home.glob("running.*"):
            if (pid := holder(mark)) and runs(pid):
                os.kill(pid, 9)
