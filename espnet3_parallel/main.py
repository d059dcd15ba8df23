"""The command `espnet3-parallel`: a verb's module is imported when the verb is used."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from espnet3_parallel import layer

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The verbs in the order in which a run needs them: the module of each, and its line in the list, without commas: fish
# cuts a text at the first one
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Before a run": {
        "doctor": ("doctor", "Check CONF without submitting anything."),
        "plan": ("configs", "Print the job scripts or manifests of CONF."),
        "size": ("configs", "Say how long --items take and on how many workers."),
    },
    "During a run": {
        "status": ("runs", "Show the progress and the job states of RUN."),
        "wait": ("runs", "Let a script wait until RUN has stopped."),
        "watch": ("watching", "Show RUN or all runs in FOLDER to a person as they go on."),
        "logs": ("runs", "Print what the jobs of RUN printed."),
        "submit": ("runs", "Submit the shards of RUN that were never submitted."),
        "cancel": ("runs", "End every job of RUN; what has been computed stays."),
    },
    "After a run": {
        "report": ("runs", "Write a report of RUN as one HTML page."),
        "failures": ("replays", "List the failed items of RUN with their errors."),
        "replay": ("replays", "Run one item of RUN again in this process."),
        "retry": ("runs", "Submit again what is missing of RUN and nothing else."),
        "merge": ("runs", "Put the outcomes of RUN in order; none may be missing."),
    },
    "For ESPnet": {
        "migrate": ("migrate.verb", "Turn Kaldi's or ESPnet2's settings into a parallel block."),
        "overlay": ("layer", "Use this layer in TREE: a checkout of ESPnet."),
    },
}
VERBS = {name: each for verbs in _GROUPS.values() for name, each in verbs.items()}
_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
_STATUS = """Exit status of every command:

\b
  0   done: the run is complete; doctor found nothing wrong
  1   ended incomplete: status, watch and wait, of a run without a process
      that works on it; doctor found something wrong; a replayed item raised;
      any command that could not do its work, with the reason on stderr
  2   called wrongly: a folder that is not a run, no such file, no such option
  75  not yet: the run is queued or at work
  130 ended by Ctrl-C; the run goes on"""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem  # 10 ms that only a shell waits for

        found = [CompletionItem(n, help=text) for n, (_, text) in VERBS.items() if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # its options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from espnet3.parallel.messages import did_you_mean  # of our layer alone

            guess = did_you_mean(args[0], VERBS)
            ctx.fail(f"no such command {args[0]!r}.{guess} There are: {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        used = None if cmd_name == "overlay" else layer.in_use()  # that is for a tree that hides our layer
        if used is not None and used.foreign:
            sys.exit("\n".join(f"{layer.COMMAND}: {finding.text}" for finding in layer.findings(used)))
        found: Any = getattr(import_module(f"espnet3_parallel.{VERBS[cmd_name][0]}"), cmd_name)
        return found if isinstance(found, click.Command) else None


@click.group(cls=_Verbs, context_settings=_SETTINGS, epilog=_STATUS)
@click.version_option(
    package_name="espnet3-parallel", message=f"%(package)s %(version)s, Python {sys.version.split()[0]}"
)
def main() -> None:
    """Inspect and control runs. RUN is a run folder (output_dir); CONF is a YAML file with a parallel block."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that shows ASCII alone gets escapes
            stream.reconfigure(errors="backslashreplace")
