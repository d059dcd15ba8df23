"""The pages that are made of the code: `make pages` writes them into docs/generated, and a test compares them.

`cli.md` holds each verb's `--help`, `api.md` each public name with the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

from click.testing import CliRunner

from espnet3 import parallel
from espnet3.parallel import ledger, testing
from espnet3_parallel.main import main as command

TARGET = Path(__file__).resolve().parents[1] / "docs/generated"
NAME = "espnet3-parallel"
INTRODUCTION = """\
Import them from `espnet3.parallel`, those of `ledger` and `testing` from there. A name that is not here is no promise.
The built site has a page for each module, with all docstrings.
"""
NOTE = "<!-- written by `make pages`: change the docstrings, not this file -->"


def cli() -> str:
    """Return the page of the command."""
    runner = CliRunner(env={"COLUMNS": "100"})

    def said(*words: str) -> str:
        done = runner.invoke(command, [*words, "--help"], prog_name=NAME, catch_exceptions=False)
        return f"```text\n{done.stdout.rstrip()}\n```\n"

    parts = [f"# The command `{NAME}`\n", NOTE + "\n", said()]
    for verb in command.list_commands(None):  # type: ignore[arg-type]  # which it does not look at
        parts += [f"## {verb}\n", said(verb)]
    return "\n".join(parts)


def modules() -> dict[str, tuple[ModuleType, list[str]]]:
    """Return each public module, the package that its names are imported from, and these names."""
    homes = {f"espnet3.parallel.{home}": (parallel, names) for home, names in parallel._HOME.items()}
    beside = {one.__name__: (one, list(one.__all__)) for one in (ledger, testing)}
    return dict(sorted({**homes, **beside}.items()))


def api() -> str:
    """Return the page of public names."""
    parts = [
        "# Public names\n",
        NOTE + "\n",
        INTRODUCTION,
    ]
    for module, (place, names) in modules().items():
        parts += [f"## {module}\n", "| Name | Is |", "|---|---|"]
        for name in sorted(names):
            first = (inspect.getdoc(getattr(place, name)) or "").split("\n\n")[0].replace("\n", " ")
            parts.append(f"| `{name}` | {first.replace('|', chr(92) + '|')} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


PAGES = {"cli.md": cli, "api.md": api}


def main() -> None:
    """Write all pages into docs/generated, or into the folder that is given."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (target / name).write_text(made(), encoding="utf-8")
        print(f"wrote {target / name}")


if __name__ == "__main__":
    main()
