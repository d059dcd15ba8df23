"""The command `espnet3-parallel`: a verb's module is imported when the verb is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from espnet3_parallel import layer

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# The module of each verb, and its line in the list of verbs, without commas: fish cuts a text at the first one
_VERBS: dict[str, tuple[str, str]] = {
    "submit": ("espnet3_parallel.runs", "Submit the shards of RUN that were never submitted."),
    "status": ("espnet3_parallel.runs", "Show the progress and the job states of RUN."),
    "wait": ("espnet3_parallel.runs", "Wait until RUN has stopped."),
    "watch": ("espnet3_parallel.watching", "Show RUN or all runs in FOLDER as they go on."),
    "logs": ("espnet3_parallel.runs", "Print what the jobs of RUN printed."),
    "report": ("espnet3_parallel.reports", "Write a report of RUN as one HTML page."),
    "failures": ("espnet3_parallel.replays", "List the failed items of RUN with their errors."),
    "replay": ("espnet3_parallel.replays", "Run one item of RUN again in this process."),
    "cancel": ("espnet3_parallel.runs", "End every job of RUN; what has been computed stays."),
    "retry": ("espnet3_parallel.runs", "Submit again what is missing of RUN and nothing else."),
    "merge": ("espnet3_parallel.runs", "Put the outcomes of RUN in order; none may be missing."),
    "doctor": ("espnet3_parallel.doctor", "Check CONF without submitting anything."),
    "plan": ("espnet3_parallel.configs", "Print the job script or manifest of CONF."),
    "size": ("espnet3_parallel.sizes", "Say how many workers --items need and for how long."),
    "migrate": ("espnet3_parallel.migrate.verb", "Turn Kaldi's or ESPnet2's settings into a parallel block."),
    "overlay": ("espnet3_parallel.overlay", "Use this layer in TREE: a checkout of ESPnet."),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem  # 10 ms that only a shell waits for

        found = [CompletionItem(n, help=text) for n, (_, text) in _VERBS.items() if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # its options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from espnet3.parallel.messages import did_you_mean  # of our layer alone

            ctx.fail(
                f"no such command {args[0]!r}.{did_you_mean(args[0], _VERBS)} There are: {', '.join(_VERBS)}"
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        if cmd_name != "overlay":  # which is for a tree that hides our layer
            _refuse_another_layer()
        found: Any = getattr(import_module(_VERBS[cmd_name][0]), cmd_name)
        return found if isinstance(found, click.Command) else None


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="espnet3-parallel", message=f"%(package)s %(version)s, Python {sys.version.split()[0]}"
)
def main() -> None:
    """Inspect and control runs. RUN is a run folder (output_dir); CONF is a YAML file with a parallel block."""


def second_name() -> None:
    """Run the command line as `espnet3`: words that are not its verbs go to ESPnet's command where there is one."""
    theirs = None if sys.argv[1:2] and sys.argv[1] in _VERBS else layer.espnets_command()
    if theirs is None:
        main()
    else:
        sys.exit(theirs.load()())


def _refuse_another_layer() -> None:
    used = layer.in_use()
    if not used.ours:
        for finding in layer.findings(used):
            print(f"{layer.COMMAND}: {finding.text}", file=sys.stderr)
        sys.exit(1)
