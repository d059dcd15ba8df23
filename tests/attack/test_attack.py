"""Small programs that try to break the package end with the right answer, or with an error that says what to do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack import judge
from tests.attack.__main__ import attacks, story
from tests.attack.case import Case, with_used
from tests.attack.drawing import FAMILIES, FIXED, drawn
from tests.attack.judge import attack
from tests.habits import rows


@pytest.fixture
def base() -> Iterator[Path]:
    """Return a new folder with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    yield folder
    shutil.rmtree(folder)


def found(cases: list[tuple[str, Case]], base: Path) -> str:
    """Return the stories of the attacks that found something."""
    return "\n\n".join(story(name, case, wrong) for name, case, wrong in attacks(cases, base) if wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # where many hang, each up to its own limit, the stories are worth the wait
@pytest.mark.matrix  # `make attack` runs them, too; by default one drawn program of each family is run
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.rpartition(".")[2])
def test_no_fixed_attack_finds_a_fault(family: object, base: Path) -> None:
    """Every fixed program of a family ends as it should, and leaves nothing behind."""
    cases = [(f"case {case.name!r}", case) for case in family.FIXED if not case.slow]  # type: ignore[attr-defined]
    assert cases
    stories = found(cases, base)
    assert not stories, stories


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seeds", rows([range(3), range(3, len(FAMILIES))], [range(3)]), ids=["few", "others"]
)
def test_no_drawn_attack_finds_a_fault(seeds: range, base: Path) -> None:
    """The programs of the first seeds, one of each family, end as they should and leave nothing behind."""
    stories = found([(f"seed {seed}", drawn(seed)) for seed in seeds], base)
    assert not stories, stories


# --- the judge finds what it is for -------------------------------------------------------------------

_WRONG = {
    "still running after": "import time\ntime.sleep(60)\nanswer = 1",
    "a wrong answer": "answer, right = [1, 2], [1, 3]",
    "a wrong answer: ...": "answer, right = [1], [True]",
    "a raw error: IndexError": "answer = [][0]",
    "a raw error: TypeError": "answer = sorted([1, 'a'])",
    "a raw error: ValueError": "raise ValueError('not raised by us, this one')",
    "neither an answer nor an error": "import os\nos._exit(3)",
    "not the same answer": "answer = W",
    "left behind: process": "import subprocess\nsubprocess.Popen(['sleep', '60'])\nanswer = 1",
    "left behind: temporary file": "import tempfile\ntempfile.mkstemp()\nanswer = 1",
    "left behind: semaphore": (
        "import multiprocessing, os, signal\n"
        "from multiprocessing.resource_tracker import _resource_tracker\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "os.kill(_resource_tracker._pid, signal.SIGKILL)  # it would take the semaphore away\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    ),
    "printed 'Exception in thread'": "threading.Thread(target=lambda: 1 / 0).start()\nanswer = 1",
    "called more than once: 3": "note(3)\nnote(3)\nanswer = 1",
}
_BY_DEFAULT = ("a wrong answer", "left behind: process")
_LAWFUL = {
    "an answer": "answer = right = [1, float('nan'), {2}]",
    "an error of ours": 'set_parallel({"env": "nowhere"})',
    "a type error of ours": "set_parallel(None)\nanswer = parallel_map(len, 5)",
}


@pytest.mark.parametrize("fault", rows([*_WRONG], _BY_DEFAULT))
def test_the_judge_finds_each_kind_of_fault(fault: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with one fault is found, for that fault."""
    monkeypatch.setattr(judge, "PATIENCE", 0.2)
    limit = 2.0 if fault.startswith("still") else 300.0
    wrong = attack(Case(fault, _WRONG[fault], parallel=False, once=True, limit=limit), base)
    assert any(fault in each for each in wrong), wrong


@pytest.mark.parametrize("end", _LAWFUL)
def test_the_judge_lets_a_lawful_end_pass(end: str, base: Path) -> None:
    """A right answer is no fault, nor is an error that we raise with a sentence."""
    assert attack(Case(end, _LAWFUL[end], parallel=False), base) == []


def test_an_error_is_a_fault_where_there_is_an_answer(base: Path) -> None:
    """A case that has to be answered may not be refused, however clearly."""
    case = Case("answers", _LAWFUL["an error of ours"], parallel=False, answers=True)
    assert "an error where there is an answer" in attack(case, base)[0]


# --- what is drawn --------------------------------------------------------------------------------------


def test_every_program_can_be_compiled_and_is_short() -> None:
    """What is fixed and what seeds draw are Python programs short enough to read at a glance."""
    for case in [*FIXED.values(), *(drawn(seed) for seed in range(100))]:
        compile(case.program(), case.name, "exec")
        compile(case.judged_program(), case.name, "exec")
        assert len(case.program().splitlines()) <= 50, case.program()


def test_a_seed_draws_the_same_program_again() -> None:
    """A seed is enough to repeat an attack, and seeds differ."""
    programs = [drawn(seed).program() for seed in range(64)]
    assert programs == [drawn(seed).program() for seed in range(64)]
    assert len(set(programs)) > 55


def test_a_program_has_the_definitions_that_it_uses_and_no_other() -> None:
    """Definitions are taken with what they use themselves; a program's own take their place."""
    uses = "import os, sys\ndef a(): return os\ndef b(): return a\ndef c(): return 3\n"
    assert with_used(uses, "b()") == "import os\ndef a(): return os\ndef b(): return a\nb()\n"
    assert with_used(uses, "def b(): pass\nc()") == "def c(): return 3\ndef b(): pass\nc()\n"
