"""`espnet3-parallel report`: a page about a run, or its facts as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from espnet3.parallel.views.facts import read_facts
from espnet3.parallel.views.page import conclusions, page_of
from espnet3_parallel.output import say, verb
from espnet3_parallel.runs import run_argument


@verb(
    run_argument,
    click.option("-o", "--output", metavar="FILE", help="Where to; - is standard output [report.html]."),
    click.option("--format", "kind", type=click.Choice(["html", "json"]), default="html", show_default=True),
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
)
def report(run: str, output: str | None, kind: str, as_json: bool) -> None:
    """Write a report of RUN as one HTML page that needs no network; JSON goes to standard output.

    RUN may be running, dead or finished; the report does not change it.
    """
    kind = "json" if as_json else kind
    facts = read_facts(Path(os.path.abspath(run)))
    if kind == "html":
        text = page_of(facts)
    else:
        times = {"began": facts.began, "ended": facts.ended, "worked": facts.worked}
        said = {**asdict(facts), **times, "left": facts.left, "conclusions": conclusions(facts)}
        text = json.dumps(said, indent=2, default=str) + "\n"
    output = output or ("report.html" if kind == "html" else "-")
    if output == "-":
        encoding = sys.stdout.encoding or "utf-8"  # what a terminal of ASCII cannot show, a page can name
        say(text.encode(encoding, "xmlcharrefreplace").decode(encoding), end="")
        return
    try:
        Path(output).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        reason = f"{output} cannot be written ({error.strerror})"
        raise click.ClickException(
            f"{reason}: take another file with -o, or -o - for standard output"
        ) from error
    say(f"wrote {output} ({len(text.encode('utf-8', 'backslashreplace')) / 1e3:,.0f} kB)")
