"""The shell completes what `espnet3` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [(["st"], ["status"]), (["w"], ["wait", "watch"]), (["doctor", "--same"], ["--same-answer"])],
)
def test_bash_completes_verbs_and_options(typed: list[str], wanted: list[str]) -> None:
    """As in an interactive shell whose start-up file has the line of the documentation."""
    script = (
        'eval "$(_ESPNET3_COMPLETE=bash_source espnet3)"; '
        f"COMP_WORDS=(espnet3 {' '.join(typed)}); COMP_CWORD={len(typed)}; "
        '_espnet3_completion espnet3; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **HERE}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == wanted


@pytest.mark.parametrize(
    ("shell", "line"), [("zsh", "#compdef espnet3"), ("fish", "complete --no-files --command espnet3")]
)
def test_zsh_and_fish_get_a_script_of_theirs(shell: str, line: str) -> None:
    """What the documentation has them read."""
    done = subprocess.run(
        ["espnet3"],
        env={**os.environ, **HERE, "_ESPNET3_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert line in done.stdout


def test_every_verb_is_offered_to_zsh_and_fish() -> None:
    """With its first line of help, which both show beside it."""
    for shell in ("zsh", "fish"):
        words = {"COMP_WORDS": "espnet3 ", "COMP_CWORD": "1" if shell == "zsh" else ""}
        done = subprocess.run(
            ["espnet3"],
            env={**os.environ, **HERE, **words, "_ESPNET3_COMPLETE": f"{shell}_complete"},
            capture_output=True,
            text=True,
            check=True,
        )
        for verb in ("submit", "status", "doctor", "report"):
            assert verb in done.stdout, (shell, verb)
