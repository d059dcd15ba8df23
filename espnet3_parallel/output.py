"""The output of verbs: texts of 80 columns that a terminal does not obey, and errors without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from textwrap import fill
from typing import Any, TextIO

import click

from espnet3.parallel.errors import ParallelError
from espnet3.parallel.messages import printable

# Takes a finding of `doctor`; None: it could not be checked
Tell = Callable[[bool | None, str], None]

_SHOWN = 5  # folders with a run that are named where there is none

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def say(text: object, file: TextIO | None = None, *, end: str = "\n", flush: bool = False) -> None:
    """Print any text, such as an item's: a terminal shows escapes and does not obey them."""
    print(printable(str(text)), file=file, end=end, flush=flush)


def wrapped(text: str, indent: int = 4) -> str:
    """Break a text between words at 80 columns; a word that is longer, such as a path, stays whole."""
    after = " " * indent
    filled = partial(fill, width=80, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        filled(line, initial_indent=after if at else "") for at, line in enumerate(text.splitlines())
    )


def a_run(run: str) -> Path:
    """Refuse a folder without a run as a mistake of usage: its exit status is not that of an incomplete run."""
    from espnet3.parallel.detached.layout import FOLDER
    from espnet3.parallel.ledger.folder import RUN

    path = Path(os.path.abspath(run))
    with suppress(OSError):  # of a folder that may not be read, the verb says why
        if not any((path / name).exists() for name in (RUN, FOLDER)):
            raise click.BadParameter(no_run(path))
    return path


def no_run(path: Path) -> str:
    """Return a message for a folder without a run; it names the runs below."""
    from espnet3.parallel.ledger.folder import RUN

    below = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"*/{RUN}"))
    more = ", ..." if len(below) > _SHOWN else ""
    there = f" (there are runs in {', '.join(below[:_SHOWN])}{more})" if below else ""
    return f"{path} holds no run{there}: give the runner's output_dir, with its shard_subdir"


def verb(*parameters: Callable[..., Any]) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function with these arguments and options; errors of this package are messages."""

    def made(body: Callable[..., Any]) -> click.Command:
        @wraps(body)
        def explained(**arguments: Any) -> Any:
            try:
                return body(**arguments)
            except BrokenPipeError:  # `| head` has seen enough: click ends the program
                raise
            except KeyboardInterrupt:
                say("not shown any more; a run that is at work goes on", file=sys.stderr)
                sys.exit(130)
            except (ParallelError, OSError) as error:  # a folder that may not be read is one more mistake
                say(f"{type(error).__name__}: {error}", file=sys.stderr)
                sys.exit(1)

        for parameter in reversed(parameters):
            parameter(explained)
        return click.command()(explained)

    return made
