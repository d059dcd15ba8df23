"""Small programs that try to break the package end with the right answer, or with an error that says what to do."""

from pathlib import Path

import pytest

from tests.attack import judge
from tests.attack.__main__ import attacks, story
from tests.attack.case import Case
from tests.attack.drawing import FAMILIES, drawn
from tests.attack.judge import attack
from tests.habits import rows


@pytest.mark.slow
@pytest.mark.matrix  # `make attack` draws more of them
@pytest.mark.timeout(3600)  # where many hang, each up to its own limit, the stories are worth the wait
def test_no_drawn_attack_finds_a_fault(tmp_path: Path) -> None:
    """The programs of the first seeds, two of each family, end as they should and leave nothing behind."""
    cases = [(f"seed {seed}", drawn(seed)) for seed in range(2 * len(FAMILIES))]
    stories = [story(name, case, wrong) for name, case, wrong in attacks(cases, tmp_path) if wrong]
    assert not stories, "\n\n".join(stories)


# --- the judge finds what it is for -------------------------------------------------------------------

_WRONG = {
    "still running after": "import time\ntime.sleep(60)\nanswer = 1",
    "a wrong answer": "answer, right = [1, 2], [1, 3]",
    "a raw error: TypeError": "answer = sorted([1, 'a'])",
    "neither an answer nor an error": "import os\nos._exit(3)",
    "not the same answer": "answer = W",
    "left behind: process": "import subprocess\nsubprocess.Popen(['sleep', '60'])\nanswer = 1",
    "left behind: temporary file": "import tempfile\ntempfile.mkstemp()\nanswer = 1",
    "printed 'Exception in thread'": "threading.Thread(target=lambda: 1 / 0).start()\nanswer = 1",
    "called more than once: 3": "note(3)\nnote(3)\nanswer = 1",
}
_BY_DEFAULT = ("a wrong answer", "left behind: process")
_LAWFUL = {
    "an answer": "answer = right = [1, float('nan'), {2}]",
    "a type error of ours": "set_parallel(None)\nanswer = parallel_map(len, 5)",
}


@pytest.mark.parametrize("fault", rows([*_WRONG], _BY_DEFAULT))
def test_the_judge_finds_each_kind_of_fault(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with one fault is found, for that fault."""
    monkeypatch.setattr(judge, "PATIENCE", 0.2)
    limit = 2.0 if fault.startswith("still") else 300.0
    wrong = attack(Case(fault, _WRONG[fault], parallel=False, once=True, limit=limit), tmp_path)
    assert any(fault in each for each in wrong), wrong


@pytest.mark.parametrize("end", _LAWFUL)
def test_the_judge_lets_a_lawful_end_pass(end: str, tmp_path: Path) -> None:
    """A right answer is no fault, nor is an error that we raise with a sentence."""
    assert attack(Case(end, _LAWFUL[end], parallel=False), tmp_path) == []


# --- what is drawn --------------------------------------------------------------------------------------


def test_every_program_can_be_compiled() -> None:
    """What seeds draw are Python programs."""
    for case in map(drawn, range(40)):
        compile(case.program(), case.name, "exec")
        compile(case.judged_program(), case.name, "exec")
