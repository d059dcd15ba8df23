"""The work of a job: one shard after the other, each from its lease to its last outcome.

lease ──> what is there ──> classes, provider, env ──> [ mark, run_items, append ] ... ──> done, or ended

With an `item_timeout`, and on GPUs, this goes on in a child of the job's process, which is killed with an item
(stopping.py).
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from espnet3.parallel.detached import states
from espnet3.parallel.detached.job import stopping
from espnet3.parallel.detached.job.stopping import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, say
from espnet3.parallel.detached.job_spec import JobSpec, load, make_provider, read_spec
from espnet3.parallel.detached.layout import DONE, ENDED, Layout, positions, stretches
from espnet3.parallel.detached.states import BEAT, JobState
from espnet3.parallel.engine.blame import History, Loss
from espnet3.parallel.engine.exceptions import describe_error
from espnet3.parallel.engine.loop import KEEP, Block, Call, Loop, on_a_worker, run_items, to_lines
from espnet3.parallel.engine.pickling import stand_for_script
from espnet3.parallel.engine.watch import Late, end_process
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import Adding, name_worker
from espnet3.parallel.env_provider import keywords_of, worker_setup_of
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.errors import FolderInUseError, LeaseLostError
from espnet3.parallel.ledger.files import make_folder, read_or_none, write_json
from espnet3.parallel.ledger.identity import what_counts
from espnet3.parallel.ledger.lease import STALE, Lease
from espnet3.parallel.ledger.split import ERRORS, FAILED, LEFT, OK, RESULTS, SPEC, Counted, SplitWriter
from espnet3.parallel.provenance.parts import LoadedCode
from espnet3.parallel.records import ItemFailure, NoItem, ProcessEnd
from espnet3.parallel.runner import shards
from espnet3.parallel.runner.execute import build_here
from espnet3.parallel.timing.recorder import TimesRecorder

_SLICE = 0.05  # seconds of items between two writes: what a kill may cost
_MOST = 1 << 14  # items of a slice
_REST = 10  # after a look at the folder of failures, none for this many times as long as it took
_PATIENCE = STALE + 4 * BEAT  # seconds: a shard's earlier worker on a dead host counts as alive for so long


class Job:
    """A job's process: it runs a shard, then one after the other those that are free, with the env that it has built.

    Free is a shard that is neither done nor ended nor begun by another job. Of begun ones a job takes those that an
    earlier start of it has left.
    """

    def __init__(self, spec: JobSpec, shards: Sequence[int], own: bool = True) -> None:
        self.began = time.monotonic()  # what the walltime counts from: here, or where the job began
        if spec.walltime is not None:
            # the job's shell has run the prologue, and become this process
            self.began += psutil.Process().create_time() - time.time()
        self.spec = spec
        # that it may work through: its own, and the others from the end, to which their own jobs come last
        self.shards = [spec.shard, *(shard for shard in reversed(shards) if shard != spec.shard)]
        self.own = own  # whether their specs must be this user's
        self.layout = Layout(Path(spec.run))
        self.place = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self.place[stopping.SHARD] = spec.shard
        self.n_lines = 0  # outcomes that it has appended
        self.built: tuple[Any, dict[str, Any], dict[str, Any]] | None = None  # runner, env, keywords

    def run(self) -> int:
        """Run what is left; return the job's exit status."""
        if not self.spec.guarded:
            return self._work()
        limit = self.spec.policy.item_timeout or float("inf")
        return stopping.guarded(self._work, limit, self.layout, self.place)

    def _work(self) -> int:
        self.stopping = stopping.Stopping(self.layout, self.spec.walltime, self.began)
        self.stopping.listen()
        self._held: Lease | None = None
        try:
            self.plan = self.layout.plan()
            self.loaded = LoadedCode(self.plan.code, what_counts)
            return self._run_shards()
        except (FolderInUseError, LeaseLostError) as error:
            say(f"stopping: {error}")
            return EXIT_UNFINISHED
        except ParallelError as error:
            say(f"{type(error).__name__}: {error}")
            return EXIT_FAILED
        finally:
            if self._held is not None:
                self._held.release()

    def _run_shards(self) -> int:
        left_to_others = states.job_of(self.layout.shard(self.spec.shard)) not in (None, self.spec.shard)
        for shard in self.shards:
            lease = self._take(shard)
            if lease is not None:
                if self._held is not None:
                    self._held.release()  # only now: meanwhile no job would seem to be at work
                self._held = lease
                spec = self.spec
                if shard != spec.shard:
                    spec = read_spec(self.layout.spec(shard), self.own)
                    say(f"going on with shard {shard}")
                    stopping.log_to(self.layout.shard(shard))
                    say(f"the job of shard {self.spec.shard} goes on here")
                status = _Attempt(spec, self, lease).run()
                stops = status != EXIT_DONE or self.stopping.now() or self.layout.stopped() is not None
                if stops or not self.layout.is_there():
                    return status
            elif shard == self.spec.shard and left_to_others:
                break  # they have come to it from the end: hardly another one is free
        if self._held is None:
            say("nothing to do: the shard is done, or another job has it")
        return EXIT_DONE

    def _take(self, shard: int) -> Lease | None:
        folder, own, job = self.layout.shard(shard), shard == self.spec.shard, self.spec.shard
        if (folder / DONE).exists():
            return None
        before = states.job_of(folder)
        again = before == job or (own and before is None)  # an earlier start of this job had it, or none had
        failed = (states.said_its_end(folder) or {}).get("state") == JobState.FAILED
        if not (again or states.is_free(folder) or (own and not failed)):
            return None
        make_folder(folder)
        lease = Lease(folder, BEAT)
        try:
            # on a host that is dead an earlier start counts as alive for a while
            states.acquire(lease, f"shard {job}", _PATIENCE if again else 0.0, self.stopping.now)
        except FolderInUseError:
            if own and again:
                raise
            return None  # another job has it
        if not (folder / DONE).exists():
            return lease
        lease.release()  # an earlier job was alive, and has finished the shard meanwhile
        return None


class _FailedError(Exception):
    """Ends an attempt; its text is the reason that `status` gives."""


class _Attempt(Counted):
    # at a shard whose lease is held: no other one appends to the folder of its outcomes

    def __init__(self, spec: JobSpec, job: Job, lease: Lease) -> None:
        self.spec = spec
        self.job = job
        self.layout = job.layout
        self.stopping = job.stopping
        self.folder = self.layout.shard(spec.shard)
        self.worker = f"shard {spec.shard} on {os.uname().nodename}"
        self.losses = states.LossFile(self.folder)
        job.place[stopping.SHARD] = spec.shard
        self.marks = states.Marks(self.folder, self.losses)
        self.stopping.begin(self.folder, self.marks)
        self.history = History(spec.policy, self.losses.losses)
        self.next_look = 0.0  # when the failed items of the whole run may be counted again
        self.begin = spec.begin  # of the stretch that is in flight
        self.lease = lease
        self.state = bytearray(len(spec.items))  # one byte for each of its items: `LEFT`, `OK` or `FAILED`
        plan, folder = job.plan, Path(spec.run) / job.plan.outcomes(spec.shard)
        facts = {"schema": 1, "run_id": spec.run_id, "indices": plan.indices_sha256, "shard": spec.shard}
        self.files = SplitWriter(folder.parent, facts)
        self.files.folder = folder
        self.times = TimesRecorder(self.files.append_times, spec.items, spec.begin, plan.n_shards)
        make_folder(folder)
        if not (folder / SPEC).exists():
            write_json(folder / SPEC, facts)
        for known, state in ((spec.skip, OK), (spec.failed, FAILED)):
            for begin, end in known:
                self._take(range(begin, end), state)
        self._take(positions(folder / ERRORS), FAILED)
        self._take(positions(folder / RESULTS), OK)
        self.n_lines = 0  # that this attempt has appended
        self.failed_before = {at for at, state in enumerate(self.state, spec.begin) if state == FAILED}
        if spec.retry_failed:
            self.state = self.state.replace(bytes([FAILED]), bytes([LEFT]))
        self._count()

    def run(self) -> int:
        state, why = JobState.DONE, ""
        try:
            try:
                self._work()
            finally:  # a signal must not interrupt what is written down from here on
                self.stopping.building = False
        except KeyboardInterrupt:
            state, why = self.stopping.reason()
        except _FailedError as error:
            state, why = JobState.FAILED, str(error)
        except LeaseLostError:
            self.stopping.end()  # the folder is another worker's
            raise
        except Exception as error:
            _, message, trace = describe_error(error)
            state, why = JobState.FAILED, f"{type(error).__name__}: {message}"
            say(trace)
        self.stopping.end()
        self.marks.close()
        self.times.flush()
        self.files.close(state is JobState.DONE)
        self.job.n_lines += self.n_lines
        if state is JobState.DONE:
            write_json(self.folder / DONE, {"ok": self.ok, "failed": self.failed})
            (self.folder / ENDED).unlink(missing_ok=True)
            say(f"done: {self.ok} ok, {self.failed} failed")
            return EXIT_DONE
        if state is JobState.UNFINISHED and self.stopping.order and not self.n_lines:
            state = JobState.NOT_STARTED
        # without an outcome the next start would end the same way; after a TERM the scheduler, or the user who
        # cancelled, decides on it
        in_time = self.stopping.signal in (None, signal.SIGUSR1, signal.SIGUSR2) and not self.stopping.order
        requeue = state is JobState.UNFINISHED and in_time and self.job.n_lines > 0
        write_json(self.folder / ENDED, {"state": state.value, "why": why, "requeue": requeue})
        say(f"{state.value}: {why}")
        return EXIT_FAILED if state is JobState.FAILED else EXIT_UNFINISHED

    def _work(self) -> None:
        begin = self.spec.begin
        due = [at for at in self.history.failed if self.state[at - begin] != OK]
        if due and self.spec.policy.on_error == "raise":
            self._settle(min(due), Block(stop=self._failure(min(due))))
        if self.job.plan.hooks:
            self._run_hooks()
        elif left := stretches(self.state, begin, LEFT):
            runner, env, keywords = self._env()
            many = bind(runner.batch_forward, env) if self.spec.batched else None
            call = Call(bind(runner.forward, env, keywords), many)
            self.stopping.building = False
            with on_a_worker(self._too_late, self.spec.guarded):
                for begin, end in left:
                    self._stretch(begin, end, call)
            self._check_budget(last=True)

    def _run_hooks(self) -> None:
        spec = self.spec
        folder = Path(spec.run) / f"split.{spec.shard}"
        runner, env, _ = self._env()
        hooks = shards.Hooks.of(runner, spec.batched)
        hooks.check(env)
        skip = {at - spec.begin: self._failure(at) for at in self.history.failed}
        apart = any(loss.items > 1 for loss in self.losses.losses)
        shard = shards.Shard(spec.shard, str(folder), spec.items, spec.begin, skip=skip, one_by_one=apart)

        def mark(in_flight: tuple[int, int] | None, hook: str) -> None:
            if in_flight is not None:
                begin, end = in_flight
                self.begin = spec.begin + begin
                in_flight = self.begin, spec.begin + end
            self.marks.note(in_flight=in_flight, hook=hook)

        with on_a_worker(self._too_late, spec.guarded):
            result = shards.run_shard(shard, env, hooks, spec.policy, mark)
        self.stopping.building = False  # the rest is quick, and belongs together
        if result.stop is not None:
            why = self._stopped(result, result.stop)
            if spec.policy.on_error == "raise":
                raise self._stop_run(why, at_item=result.stop.cause != "runner")
            self._check_budget(last=True)
            raise _FailedError(why)
        end = spec.begin + len(spec.items)
        indices = {"indices": self.job.plan.indices_sha256, "begin": spec.begin, "end": end}
        write_json(folder / DONE, indices)
        self._append(spec.begin, result)
        self._check_budget(last=True)

    def _stopped(self, result: Block, stop: ItemFailure) -> str:
        say(stop.traceback)
        if stop.cause == "runner":  # no item's fault
            return f"the runner failed: {stop.error_type}: {stop.message}"
        position = self.spec.begin + len(result.values)
        if not isinstance(stop.index, NoItem):  # else a hook failed, without an item
            self._append(position, Block(stop=stop))
        return self._sentence_of(position, stop)

    def _env(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        spec, job = self.spec, self.job
        self.stopping.building = True  # nothing is in flight: a signal ends it at once
        if self.stopping.now():
            raise KeyboardInterrupt
        spec.surroundings.restore()
        begin = time.perf_counter()
        if job.built is None:  # all specs of a submission describe the same
            # one name for each process: its first shard's, which is no other's
            name_worker(f"shard-{spec.shard}")
            runner = load(spec.runner)
            provider = make_provider(load(spec.provider), spec.arguments)
            if spec.runner.script:
                stand_for_script(spec.runner.file)
            job.loaded.check("this job")
            begin = time.perf_counter()
            env = build_here(Adding(worker_setup_of(provider), spec.entries, spec.given), spec.setup_timeout)
            job.loaded.check("this job")  # with the modules that the env has imported
            job.built = runner, env, keywords_of(provider)
        self.times.came(self.worker, time.time(), 0.0, time.perf_counter() - begin)
        return job.built

    def _stretch(self, at: int, end: int, call: Call) -> None:
        unit = (self.spec.policy.batch_size or 1) if call.many is not None else 1
        most = _MOST // unit * unit or unit
        while at < end:
            if self.stopping.now():
                raise KeyboardInterrupt
            if at in self.history.failed:
                block = Block([self._failure(at)], [0])
            else:
                apart = (place for place in self.history.suspects if place > at)
                upto = at + 1 if at in self.history.suspects else min([at + most, end, *apart])
                block = self._run(at, upto, call)
            self._settle(at, block)
            at += len(block.values)

    def _run(self, begin: int, end: int, call: Call) -> Block:
        spec = self.spec
        items = spec.items[begin - spec.begin : end - spec.begin]
        self.begin = begin

        def enter(at: int, n: int) -> None:
            step = begin + at, min(begin + at + n, end)
            self.marks.note(in_flight=step, since=time.monotonic())

        loop = Loop(items, call, spec.policy, self.worker, _SLICE, self.stopping.now, enter, keep=KEEP)
        block = run_items(loop)
        self.marks.note(in_flight=None)  # a slow disk is no late item
        self.job.loaded.check("this job")  # with the modules that the items have imported
        self.stopping.longest = max([self.stopping.longest, *(seconds for _, seconds in block.steps)])
        to_lines(block, range(begin, end), items, spec.policy)
        return block

    def _settle(self, begin: int, block: Block) -> None:
        if self.stopping.signal and (block.failed or block.stop):
            raise KeyboardInterrupt  # they may have failed because what they had started was sent the signal, too
        self._append(begin, block)
        if block.stop is not None:
            say(block.stop.traceback)
            why = self._sentence_of(begin + len(block.values), block.stop)
            raise self._stop_run(why, at_item=True)
        self._check_budget()
        if block.error is not None:  # the runner's own mistake, such as a batch of another length
            raise block.error

    def _check_budget(self, last: bool = False) -> None:
        begin, limit, total = time.monotonic(), self.spec.max_failures, self.job.plan.bounds[-1]
        if limit is None or not self.failed or (begin < self.next_look and not last):
            return
        self.marks.sync()
        folders = [self.layout.shard(number) for number in range(self.job.plan.n_shards)]
        counts = (read_or_none(folder / DONE) or states.read_mark(folder) for folder in folders)
        failed = sum(each.get("failed", 0) for each in counts)
        now = time.monotonic()
        self.next_look = now + _REST * (now - begin)
        if failed > (limit * total if 0 < limit < 1 else limit):
            raise self._stop_run(f"{failed} of {total} items failed, and max_failures is {limit:g}")

    def _stop_run(self, why: str, at_item: bool = False) -> _FailedError:
        stopped = f"shard {self.spec.shard} stopped the run: {why}"
        self.layout.order_stop({"state": JobState.UNFINISHED.value, "why": stopped, "at_item": at_item})
        return _FailedError(why)

    def _count(self) -> None:
        self.marks.note(ok=self.ok, failed=self.failed)

    def _too_late(self, late: Late) -> None:
        try:
            begin = self.begin + late.position
            end, why = ProcessEnd(signal=signal.SIGKILL), late.error
            self.losses.add(Loss(begin, late.items, end, seconds=late.seconds, stack=late.stack, error=why))
            self.job.place[stopping.IS_LATE] = True
            self.marks.note(stopping=True)
            did = f"took {late.seconds:.1f} s" if why is None else f"raised {': '.join(why[:2])}"
            say(f"killing this process: {late.items} items from position {begin} {did}")
        finally:
            end_process()

    def _failure(self, at: int) -> ItemFailure:
        # of a position that does not go again
        return self.history.failure(at, self.spec.items[at - self.spec.begin], self.worker, self.worker)

    def _sentence_of(self, position: int, failure: ItemFailure) -> str:
        again = " again" if position in self.failed_before else ""
        return f"{failure.name} failed{again}: {failure.error_type}: {failure.message}"

    def _append(self, begin: int, block: Block) -> None:
        values, failed = block.values, set(block.failed)
        places = range(begin, begin + len(values))
        lost = [(places[at], values[at]) for at in block.failed]
        if block.stop is not None:
            lost.append((places.stop, block.stop))
        self.lease.check()
        results = [value for at, value in enumerate(values) if at not in failed]
        self.files.append(results, None if failed else places)
        self.files.append_failures(lost)
        self.n_lines += len(results) + len(lost)
        self._take(places, OK)
        self._take((place for place, _ in lost), FAILED)
        self._count()
        self.times.took(self.worker, block, places)

    def _take(self, positions: Iterable[int], state: int) -> None:
        begin, n = self.spec.begin, len(self.state)
        for position in positions:
            if 0 <= position - begin < n:
                self.state[position - begin] = state
