"""The command `espnet3`: a verb's module is imported when the verb is used."""

from __future__ import annotations

import platform
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import click

from espnet3.parallel.messages import did_you_mean

_PACKAGE = "espnet3-parallel"
# In the order in which they are listed.
_VERBS = {
    "submit": "espnet3.cli.runs",
    "status": "espnet3.cli.runs",
    "wait": "espnet3.cli.runs",
    "watch": "espnet3.cli.watching",
    "logs": "espnet3.cli.runs",
    "report": "espnet3.cli.reports",
    "replay": "espnet3.cli.replays",
    "cancel": "espnet3.cli.runs",
    "retry": "espnet3.cli.runs",
    "merge": "espnet3.cli.runs",
    "doctor": "espnet3.cli.doctor",
    "plan": "espnet3.cli.configs",
    "size": "espnet3.cli.sizes",
    "migrate": "espnet3.cli.migrate.verb",
    "overlay": "espnet3_parallel.overlay",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            ctx.fail(
                f"no such command {args[0]!r}.{did_you_mean(args[0], _VERBS)} There are: {', '.join(_VERBS)}"
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        found: Any = getattr(import_module(_VERBS[cmd_name]), cmd_name)
        return found if isinstance(found, click.Command) else None


def _print_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    try:
        number = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        number = f"of the checkout in {Path(__file__).resolve().parents[2]}, not installed"
    print(f"{_PACKAGE} {number}, Python {platform.python_version()}")
    context.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and leave.",
)
def main() -> None:
    """Inspect and control runs. RUN is a run folder (output_dir); CONF is a YAML file with a parallel block."""
