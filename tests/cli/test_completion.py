"""The shell completes what `espnet3-parallel` takes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3_parallel import main as command

FISH = shutil.which("fish")
HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [(["st"], ["status"]), (["w"], ["wait", "watch"]), (["doctor", "--same"], ["--same-answer"])],
)
def test_bash_completes_verbs_and_options(typed: list[str], wanted: list[str]) -> None:
    """As in an interactive shell whose start-up file has the line of the documentation."""
    script = (
        'eval "$(_ESPNET3_PARALLEL_COMPLETE=bash_source espnet3-parallel)"; '
        f"COMP_WORDS=(espnet3-parallel {' '.join(typed)}); COMP_CWORD={len(typed)}; "
        '_espnet3_parallel_completion espnet3-parallel; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **HERE}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == wanted


@pytest.mark.parametrize(
    ("shell", "line"),
    [("zsh", "#compdef espnet3-parallel"), ("fish", "complete --no-files --command espnet3-parallel")],
)
def test_zsh_and_fish_get_a_script_of_theirs(shell: str, line: str) -> None:
    """The line of the documentation."""
    done = subprocess.run(
        ["espnet3-parallel"],
        env={**os.environ, **HERE, "_ESPNET3_PARALLEL_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert line in done.stdout


@pytest.mark.skipif(FISH is None, reason="needs fish; .ci/run installs it")
def test_fish_shows_each_verb_with_all_that_the_list_says_of_it(tmp_path: Path) -> None:
    """A real fish: nothing of the text is lost to its parser."""
    line = (
        "_ESPNET3_PARALLEL_COMPLETE=fish_source espnet3-parallel | source; "
        'for verb in $argv; complete -C "espnet3-parallel $verb"; end'
    )
    done = subprocess.run(
        [str(FISH), "-c", line, *command.VERBS],
        env={**os.environ, **HERE, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = "".join(f"{verb}\t{text}\n" for verb, (_, text) in command.VERBS.items())
    assert done.stdout == said
