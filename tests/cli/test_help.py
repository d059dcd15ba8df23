"""`espnet3 --help`: the list of verbs, without loading them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from espnet3.cli import main as command

MODULE = Path(sys.executable).with_name("espnet3")


def test_the_list_of_verbs_loads_none_of_them() -> None:
    """Neither a verb's module nor Dask, asyncio or the package's metadata, which would take ten times as long."""
    program = (
        "import sys; sys.argv = ['espnet3', '--help']\n"
        "from espnet3_parallel.command import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'asyncio', 'distributed', 'dask', 'importlib.metadata', 'omegaconf', 'espnet3.parallel.config'}\n"
        "heavy |= {name for name in sys.modules if name.startswith('espnet3.cli.') and name != 'espnet3.cli.main'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in command._VERBS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", list(command._VERBS))
def test_the_list_and_the_verb_begin_alike(name: str) -> None:
    """The line of a verb in the list is found again in its own help, up to omitted words; it fits 80 columns."""
    verb = command.main.get_command(click.Context(command.main), name)
    assert verb is not None and verb.help
    text = command._VERBS[name][1]
    assert len(text) <= 64
    words = verb.help.replace(".", " ").replace(";", " ").replace(",", " ").split()
    said = text.rstrip(".").replace(";", " ").replace(",", " ").split()
    assert len(set(said) & set(words)) >= len(set(said)) / 2, (said, verb.help)
