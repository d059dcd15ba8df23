"""One round: a run is disturbed a few times, started again until it is done, and compared."""

import contextlib
import itertools
import json
import random
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from espnet3.parallel.ledger.errors import LedgerError
from espnet3.parallel.ledger.identity import hash_indices
from espnet3.parallel.ledger.split import LEFT, Scan
from espnet3.parallel.runner.shards import SHARDS, cut
from tests.chaos import outcome
from tests.chaos.kinds import ALL, KINDS, ONE, Kind, kind_of_sessions
from tests.chaos.outcome import Disturbance, count_again
from tests.chaos.program import MERGING, OPENING, cost_of
from tests.chaos.start import Pipe, Start
from tests.parallel.faults.watching import PATIENCE, family

N = 240
VARIANTS = ("items", "files")
BATCHES = (None, 2, 5, 16)
# Of each worker's runs not on disk yet: one that the driver is about to write, one that is done and on its
# way, and the one that is worked on
CHUNKS_HELD = 3


class WrongError(AssertionError):
    pass


@dataclass
class Played:
    seed: int
    variant: str
    home: Path
    disturbances: list[Disturbance] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    wrong: str = ""


def play(seed: int, home: Path, undisturbed: dict[str, outcome.Outcome]) -> Played:
    round_ = Round(seed, home)
    with round_.open():
        try:
            round_.play(undisturbed[round_.played.variant])
        except (AssertionError, LedgerError) as error:
            last = round_.starts[-1] if round_.starts else None
            round_.played.wrong = f"{error}\n" + (
                f"the last start printed: {last.text[-300:]}" if last else ""
            )
    return round_.played


def reference(variant: str, base: Path) -> outcome.Outcome:
    """Run a variant undisturbed, in one process without Dask, and return its outcome."""
    home = base / variant
    home.mkdir()
    round_ = Round(0, home)
    round_.kinds, round_.variant = [], variant
    with round_.open():
        start = round_.start(workers=1)
        round_.expect(start.end() == 0, start, "it did not end well")
    return outcome.read(round_.folder, variant)


class Round:
    def __init__(self, seed: int, home: Path) -> None:
        self.draw = random.Random(seed)
        more = self.draw.choice([0, 0, 1, 2])
        self.kinds = [KINDS[seed % len(KINDS)], *self.draw.choices(KINDS, k=more)]
        self.variant = VARIANTS[(seed + seed // len(KINDS)) % len(VARIANTS)]
        # what a damaged line costs: an item, or all of the shard it is in
        self.unit = 1 if self.variant == "items" else _largest_shard()
        self.token = uuid.uuid4().hex
        self.home = home
        self.folder = home / "run"
        self.played = Played(seed, self.variant, home)
        self.pipe = Pipe(home / "pipe")
        self.starts: list[Start] = []
        self.resume: bool | str = True

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make what the round needs, and take it away."""
        try:
            yield
        finally:
            for start in self.starts:
                start.close()
            for process in family(self.token):
                process.kill()
            self.pipe.close()

    # --- what the kinds use ---

    def say(self, line: str) -> None:
        self.played.story.append(line)

    def expect(self, right: bool, start: Start, what: str) -> None:
        if not right:
            raise WrongError(f"start {start.number}: {what}; it printed:\n{start.text[-2000:]}")

    def start(self, *, pool: bool = False, workers: int | None = None) -> Start:
        """Start the program with a drawn batch size and number of workers; `pool`: more than one."""
        settings = {
            "folder": str(self.folder),
            "pipe": str(self.pipe.path),
            "variant": self.variant,
            "items": N,
            "workers": workers or self.draw.choice([2, 3] if pool else [1, 2, 2, 3]),
            "batch_size": self.draw.choice(BATCHES),
            "resume": self.resume,
        }
        start = Start(self.pipe, len(self.starts), self.home, settings, self.token)
        self.starts.append(start)
        said = ", ".join(f"{name} {settings[name]}" for name in ("workers", "batch_size", "resume"))
        self.say(f"  start {start.number}: {said}")
        return start

    def wait_for_a_moment(self, start: Start) -> bool:
        """Wait until a start has come to a drawn moment; False if it ended before."""
        where, late = self.draw.random(), self.draw.random()
        after = 1 + self.draw.randrange(max(1, N - len(self._seen())))
        if where < 0.1:
            late *= 0.5
            self.say(f"  {late:.3f} s after it opens the folder")
            reached = start.wait_for(lambda reported: OPENING in reported.phases)
        elif where < 0.25:
            late *= 0.02
            self.say(f"  {late:.4f} s after its merge begins")
            reached = start.wait_for(lambda reported: MERGING in reported.phases)
        else:
            late *= 0.01
            self.say(f"  {late:.4f} s after its item {after}")
            reached = start.wait_for(lambda reported: len(reported.items) >= after)
        if reached:
            with contextlib.suppress(subprocess.TimeoutExpired):
                start.process.wait(late)
        return reached and start.process.poll() is None

    def knock(self, said: str, may_run: bool = False) -> None:
        """Start on a damaged folder: it is refused and says what to do, and the next start does that.

        Where the damage may be of no consequence (`may_run`), the run may go on.
        """
        self.resume = True  # an earlier "force" may have been killed before it came to anything
        start = self.start()
        code = start.end()
        if may_run and code == 0 and start.finished():
            return
        found = re.search(said, start.text, re.DOTALL)
        self.expect(
            code == 1 and bool(found) and not start.reported.items, start, "not refused as it should be"
        )
        self.resume = "force"

    # --- a round ---

    def play(self, undisturbed: outcome.Outcome) -> None:
        for kind in self.kinds:
            self.say(f"{kind.name}:")
            now = Disturbance(kind.name, len(self.starts))
            self.played.disturbances.append(now)
            start = kind.do(self)
            # else it may not have come to what it was asked to do
            if start.reported.items or start.finished():
                self.resume = True
            now.bound = _in_flight(kind, start)
            now.on_disk = self._done()
            if kind.damage is not None:
                now.damaged = True
                now.bound += kind.damage(self)
        self.say("undisturbed:")
        last = self.start()
        self.expect(last.end() == 0 and last.finished(), last, "it did not end well")
        _, alive = psutil.wait_procs(family(self.token), timeout=PATIENCE)
        left = [" ".join(p.cmdline())[-200:] for p in alive if p.is_running()]
        self.expect(not left, last, f"processes were left: {left}")
        self.pipe.read()
        count_again(self.played.disturbances, [self.pipe.reported[k].items for k in range(len(self.starts))])
        for one in self.played.disturbances:
            if one.again > one.bound:
                raise WrongError(
                    f"{one.kind}: {one.again} items computed again, at most {one.bound} expected"
                )
        found = outcome.read(self.folder, self.variant)
        for what in outcome.differences(undisturbed, found):
            raise WrongError(what)

    def _seen(self) -> set[int]:
        self.pipe.read()
        return {idx for reported in self.pipe.reported.values() for idx in reported.items}

    def _done(self) -> frozenset[int]:
        """Return the items that have an outcome on disk."""
        if not self.folder.exists():
            return frozenset()
        kind, items = kind_of_sessions(self.variant), range(N)
        scan = Scan(self.folder, items, hash_indices(items), kind)
        noted = frozenset(idx for idx in items if scan.state[idx] != LEFT)
        if self.variant == "items":
            return noted
        shards = [_finished_shard(mark) for mark in self.folder.glob("split.*/done")]
        return frozenset(idx for shard in shards if noted.issuperset(shard) for idx in shard)


def _finished_shard(mark: Path) -> range:
    try:
        said = json.loads(mark.read_bytes())
        return range(said["begin"], said["end"])
    except (ValueError, KeyError):  # damaged
        return range(0)


def _in_flight(kind: Kind, start: Start) -> int:
    """Return how many items may be computed again: those of all chunks that the lost workers held."""
    if kind.lose == ALL and start.n_workers > 1:
        return start.n_workers * CHUNKS_HELD * start.reported.chunk
    # a lost worker costs what it worked on; without workers there is nothing else
    return start.reported.chunk if kind.lose in (ALL, ONE) else 0


def _largest_shard() -> int:
    """Return the most items a shard may have, whatever batch size it was cut for."""
    costs = [float(cost_of(idx)) for idx in range(N)]
    begins = [[*cut(N, SHARDS, costs, batch or 1), N] for batch in BATCHES]
    return max(b - a for cuts in begins for a, b in itertools.pairwise(cuts))
