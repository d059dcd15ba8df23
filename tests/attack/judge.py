"""Runs an attack's program in a process of its own, and says what was wrong with how it ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.attack.case import Case
from tests.parallel.faults.watching import TOKEN, family, kill_family

REPO = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds for a busy machine to take away what a program's end should take away
# what a Python process prints of an exception that nobody was there to catch
_NOISE = re.compile(
    r"Exception ignored in|Exception in thread|Fatal Python error|leaked \w+ objects|never (awaited|retrieved)"
)
# besides ParallelError: in a sentence, when we raise it ourselves or our note says which item it is about
_CLEAR = ("TypeError", "ValueError", "PicklingError")


@dataclass(frozen=True, slots=True)
class Run:
    workers: int
    verdict: dict[str, Any]  # of its report; empty where it wrote nothing
    code: int | None  # None where it ran into its limit
    text: str
    stacks: str  # at its limit
    left: tuple[str, ...]
    twice: tuple[str, ...]

    @property
    def end(self) -> str:
        """The answer, or the type of the error: what has to be the same with any number of workers."""
        return self.verdict.get("answer") or f"error {self.verdict.get('error')}"


def attack(case: Case, base: Path, code: Path = REPO) -> list[str]:
    """Run a case's program with each number of workers; return what was wrong, a sentence each."""
    runs = [play(case, workers, base, code) for workers in case.workers]
    wrong = [f"W={run.workers}: {fault}" for run in runs for fault in faults(case, run)]
    ends = {run.end for run in runs if not (case.differ and "error" in run.verdict)}
    if len(ends) > 1:
        each = "; ".join(f"W={run.workers}: {run.end[:500]}" for run in runs)
        wrong.append(f"not the same answer with every number of workers: {each}")
    return wrong


def play(case: Case, workers: int, base: Path, code: Path = REPO) -> Run:
    """Run a case's program once and look at what it leaves."""
    home = base / f"{uuid.uuid4().hex[:8]}"
    (home / "tmp").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("report.py"), home)
    program = home / "program.py"
    program.write_text(case.judged_program())
    token = uuid.uuid4().hex
    full = {"ESPNET3_TRACEBACK": "full"}  # with the line that raised an error
    env = {**os.environ, **full, "PYTHONPATH": str(code), "TMPDIR": str(home / "tmp"), TOKEN: token}
    for name in ("PYTHONHASHSEED", "PYTEST_CURRENT_TEST"):  # each process orders its sets in its own way
        env.pop(name, None)
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(program), str(workers)],
            cwd=home,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ended: int | None = process.wait(case.limit)
    except subprocess.TimeoutExpired:
        ended = None
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)  # a process that hangs sends no event when it has printed its stacks
    try:
        left = left_behind(home, token) if ended is not None else []
    finally:
        kill_family(token)
        process.wait()
    run = Run(
        workers,
        json.loads(_read(home / "verdict.json") or "{}"),
        ended,
        _read(home / "output"),
        _read(home / "stacks"),
        tuple(left),
        tuple(sorted(call for call, times in Counter(_read(home / "calls").split()).items() if times > 1)),
    )
    shutil.rmtree(home, ignore_errors=True)  # some programs take rights away
    return run


def faults(case: Case, run: Run) -> list[str]:
    if run.code is None:
        return [f"still running after {case.limit:g} s\n{run.stacks}\n{run.text[-1500:]}"]
    found = [f"left behind: {what}" for what in run.left]
    if case.once and run.twice:
        found.append(f"called more than once: {', '.join(run.twice[:5])}")
    noise = _NOISE.search(run.text)
    if noise:
        found.append(f"printed {noise.group()!r}:\n{run.text[-1500:]}")
    if "answer" in run.verdict:
        right = run.verdict["right"]
        if right is not None and run.verdict["answer"] != right:
            found.append(f"a wrong answer: {_difference(run.verdict['answer'], right)}")
    elif "error" in run.verdict:
        found += _unclear(case, run.verdict)
    # an item's own exit may end the program, with its code
    elif not ("SystemExit" in case.own and run.code == 3):
        found.append(f"ended with code {run.code} and neither an answer nor an error:\n{run.text[-1500:]}")
    return found


def _unclear(case: Case, verdict: dict[str, Any]) -> list[str]:
    """Return why an error is not one that a user can act on."""
    said = f"{verdict['error']}: {verdict['message'][:500]}"
    where = f"{verdict['file']}:{verdict['line']}: {verdict['code']}"
    if case.answers:
        return [f"an error where there is an answer: {said}"]
    if verdict["error"] in case.own:
        return []
    sentence = len(verdict["message"].split()) >= 4
    if any(base.endswith(".ParallelError") for base in verdict["bases"]) and sentence:
        return []
    # Python itself raises where a call has other arguments, or data no items
    raised = verdict["code"].startswith(("raise ", "return call(", "found = iter("))
    ours = "espnet3" in Path(verdict["file"]).parts and raised
    noted = any("item" in note for note in verdict["notes"])  # a note of ours says which item
    if verdict["error"] in _CLEAR and (ours or noted) and sentence:
        return []
    return [f"a raw error: {said} (raised by {where})"]


def _difference(answer: str, right: str) -> str:
    """Return where two canonical texts part."""
    at = next((i for i, (a, b) in enumerate(zip(answer, right, strict=False)) if a != b), 0)
    begin = max(0, at - 100)
    return f"...{answer[begin : at + 200]!r}, and right is ...{right[begin : at + 200]!r}"


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""


# --- what is left -----------------------------------------------------------------------------------


def left_behind(home: Path, token: str) -> list[str]:
    """Return what is left after a program's end, once a busy machine has had its time."""
    _, alive = psutil.wait_procs(family(token), timeout=PATIENCE)
    end = time.monotonic() + PATIENCE
    left = [f"process {p.pid}: {command}" for p in alive if (command := _command(p))]
    while not left and (files := _files(home)):
        if time.monotonic() > end:
            return files
        time.sleep(0.05)
    return left


def _command(process: psutil.Process) -> str:
    """Return the end of a process's command line; nothing where it has ended."""
    try:
        return " ".join(process.cmdline()[:3])[-200:]
    except psutil.Error:
        return ""


def _files(home: Path) -> list[str]:
    folders = [home / "tmp", *home.glob("x" * 20 + "*")]  # a long TMPDIR is one of these
    # what workers that were killed leave in Dask's folder, Dask takes away at the start of the next
    there = [path.name for f in folders for path in f.iterdir() if path.name != "dask-scratch-space"]
    return [f"temporary file {name}" for name in there]
