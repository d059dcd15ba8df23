"""An edit between two starts: one that a result depends on is refused and named, any other goes on."""

import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError
from espnet3.parallel.ledger import identity as identity_module
from tests.habits import rows
from tests.parallel.contract.notebooks import notebook
from tests.parallel.durable.work import Provider, Squares

PROGRAM = textwrap.dedent("""
    from helper import shift
    from espnet3.parallel import BaseRunner, EnvironmentProvider

    class Nothing(EnvironmentProvider):
        def build_env_local(self):
            return {}

    class Shifted(BaseRunner):
        @staticmethod
        def forward(idx):
            return shift(idx)

    try:
        print(list(Shifted(Nothing(), output_dir="out", progress=False)(range(3))))
    except Exception as error:
        print(type(error).__name__, error)
""")
HELPER = "def shift(x):\n    return x + 1\n"


def start(folder: Path, program: str, helper: str, how: str = "program.py", *words: str, **env: str) -> str:
    """Run a program in a process of its own, as a file or from standard input; return what it printed."""
    (folder / "helper.py").write_text(helper)
    (folder / "program.py").write_text(program)
    given: dict[str, Any] = {"input": program} if how == "-" else {}
    given["env"] = {**os.environ, **env}
    command = [sys.executable, "-B", how, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, **given)
    return done.stdout.strip()


@pytest.mark.parametrize("how", rows(["program.py", "-"], ("program.py",)))
def test_an_edited_helper_or_class_is_refused(how: str, tmp_path: Path) -> None:
    """A helper module or the class itself is edited: refused with file and function; never the old results."""
    assert start(tmp_path, PROGRAM, HELPER, how) == "[1, 2, 3]"
    said = start(tmp_path, PROGRAM, HELPER.replace("1", "10"), how)
    assert said.startswith("ChangedRunError") and f"{tmp_path / 'helper.py'}: shift has changed" in said
    said = start(tmp_path, PROGRAM.replace("shift(idx)", "shift(idx) * 2"), HELPER, how)
    assert said.startswith("ChangedRunError") and "Shifted.forward has changed" in said
    assert start(tmp_path, PROGRAM, f"# a comment\n{HELPER}\n", how) == "[1, 2, 3]"


def test_asserts_that_python_leaves_out_count(tmp_path: Path) -> None:
    """With and without `python -O` a module that a function imports is another one, if it has an assert."""
    late = PROGRAM.replace("from helper import shift\n", "").replace(
        "return shift", "from helper import shift\n        return shift"
    )
    checks = HELPER.replace("    return", "    assert x < 9\n    return")
    for helper, said in ((HELPER, "[1, 2, 3]"), (checks, "ChangedRunError")):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert start(tmp_path, late, helper) == "[1, 2, 3]"
        assert start(tmp_path, late, helper, "-O", "program.py").startswith(said)


def test_an_edited_cell_of_a_notebook_is_refused(tmp_path: Path) -> None:
    """A class or a variable of a notebook is edited in place: refused; a comment is not."""
    (tmp_path / "helper.py").write_text(HELPER)
    classes, _, run = PROGRAM.partition("\n\ntry:")
    run = f"try:{run}"
    with notebook(tmp_path) as cell:
        cell("SCALE = 2")
        cell(classes.replace("shift(idx)", "shift(idx) * SCALE"))
        assert cell(run).strip() == "[2, 4, 6]"
        cell(classes.replace("shift(idx)", "shift(idx) * SCALE  # as it was"))
        assert cell(run).strip() == "[2, 4, 6]"
        cell("SCALE = 3")
        assert "SCALE has changed" in cell(run)
        cell("SCALE = 2")
        cell(classes.replace("shift(idx)", "shift(idx) - SCALE"))
        assert "Shifted.forward has changed" in cell(run)


def test_a_module_that_was_edited_after_its_import_is_noticed_by_the_next_start(tmp_path: Path) -> None:
    """A folder holds the loaded code of a driver without workers: what the file says by then is another run's."""
    edited = HELPER.replace("1", "10")
    edits = f"open('helper.py', 'w').write({edited!r})"
    assert start(tmp_path, PROGRAM.replace("\n\ntry:", f"\n\n{edits}\ntry:"), HELPER) == "[1, 2, 3]"
    assert start(tmp_path, PROGRAM, edited).startswith("ChangedRunError")


def test_forced_results_are_taken_over(tmp_path: Path) -> None:
    """resume="force" goes on over an edit, and notes it in the run's history."""
    forced = PROGRAM.replace('"out",', '"out", resume="force",')
    start(tmp_path, PROGRAM, HELPER)
    assert start(tmp_path, forced, HELPER.replace("1", "10")) == "[1, 2, 3]"
    assert "shift has changed" in (tmp_path / "out/run.json").read_text()


def test_another_version_of_a_package_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that the code imports has another version than before: the run goes on, and says so once."""
    runner = Squares(Provider({"log": str(tmp_path / "log")}), output_dir=tmp_path / "run", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner(range(3))
        runner(range(3))
    versions = identity_module.package_versions

    def later(names: object) -> dict[str, str]:
        found = versions([])
        return {**found, "python": f"{found['python'].rpartition('.')[0]}.99"}

    monkeypatch.setattr(identity_module, "package_versions", later)
    with pytest.warns(UserWarning, match=r"python \S+ -> \S+\.99"):
        runner(range(3))


def test_a_config_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """A generator in the config has no content: refused before any item, with its place and what to do."""
    provider = Provider({"log": str(tmp_path / "log"), "words": (word for word in "ab")})
    with pytest.raises(
        ConfigError, match=r"config\.words is a generator, which has no content .* build_env_local"
    ):
        Squares(provider, output_dir=tmp_path / "run", progress=False)(range(3))
    assert not (tmp_path / "log").exists()


AGAIN = """
from espnet3.parallel import BaseRunner, ChangedRunError, EnvironmentProvider

class Texts(EnvironmentProvider):
    def build_env_local(self):
        return {"texts": ["a", "bb"]}

class Length(BaseRunner):
    @staticmethod
    def forward(idx, texts):
        return len(texts[idx])

print(list(Length(Texts(), output_dir="out", progress=False)(range(2))))
print(list(Length(Texts(), output_dir="out", progress=False)(range(2))))

def longer(idx, texts):
    return len(texts[idx]) + 1

Length.forward = staticmethod(longer)
try:
    print(list(Length(Texts(), output_dir="out", progress=False)(range(2))))
except ChangedRunError as error:
    print("refused", *error.differences)
"""


def test_a_class_that_a_script_changes_under_its_name_is_refused(tmp_path: Path) -> None:
    """What has another function as its method never gets the results of the first."""
    for _ in range(2):  # the program itself, started again, is the same run
        first, same, changed = start(tmp_path, AGAIN, HELPER).split("\n")
        assert first == same == "[1, 2]"
        assert changed.startswith("refused") and "Length.forward" in changed
