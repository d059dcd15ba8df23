"""The command line of a recipe's run.py: stages, a config for each role, overrides."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset_builder import SourceError
from espnet3.components.instantiate import as_plain
from espnet3.parallel import ChangedRunError, DetachedRun, FolderInUseError, ParallelConfig
from espnet3.parallel.errors import ConfigError, MissingPackageError, SubmissionError
from espnet3.parallel.messages import printable, shown
from espnet3.systems.base.inference import InferResult
from espnet3.systems.base.scp import OutputsError
from espnet3.systems.base.system import UNTRAINED, is_ours
from espnet3.systems.configs.loading import StageConfigs, load_configs
from espnet3.systems.configs.mistakes import NEEDED, StageConfigError, require
from espnet3.systems.configs.reading import place_of
from espnet3.systems.configs.roles import ROLES, role_of
from espnet3.systems.logs import show_logs
from espnet3.systems.stages import StageSpec, chosen, roles_of, specs_of, stage_names

_ANEW = (
    "On this command line that is runner.resume=false or runner.resume=force for infer, +collect_stats.resume=false "
    "or =force for collect_stats; without its folder every stage begins anew."
)


def launch(
    system: type,
    *,
    recipe_dir: Path | None = None,
    argv: Sequence[str] | None = None,
    parser: argparse.ArgumentParser | None = None,
    show: Callable[[Mapping[str, Any]], None] | None = None,
) -> int:
    """Read the command line, and run the stages that it asks for.

    Args:
        system: The system's class; it is made with `training_config`, `inference_config`, ... of the files there are.
        recipe_dir: The recipe's folder, which classes are imported from; None: that of the script that was started.
        argv: The words of the command line; None: this process's.
        parser: A parser with more options, made by `build_parser` and added to.
        show: Prints what the stages have returned; None: `show_results`.

    Returns:
        The exit status: 0; 1 where a builder cannot get its sources, or a folder holds another run, or is in use.

    A mistake on the command line or in a config ends the process with status 2 and one message.
    """
    recipe = (recipe_dir or Path(sys.argv[0]).parent).resolve()
    if str(recipe) not in sys.path:  # the configs name the recipe's classes as src.* and dataset.*
        sys.path.insert(0, str(recipe))
    parser = parser or build_parser(system)
    args = parser.parse_intermixed_args(argv)
    args.overrides += [word for word in args.stages if "=" in word]  # they may stand anywhere
    args.stages = [word for word in args.stages if "=" not in word]
    show_logs()
    configs = StageConfigs({})
    try:
        stages = chosen(system, args.stages)
        configs = load_configs(
            recipe,
            {role: getattr(args, f"{role}_config") for role in _roles(system)},
            parallel=args.parallel_config,
            overrides=args.overrides,
            check=(),
        )
        _check(system, stages, configs, recipe)
        if args.limit is not None and "inference" in configs:
            configs["inference"]["limit"] = args.limit
        made = system(**configs.arguments())
        made.check_jobs([each.name for each in stages])
    except (FileNotFoundError, MissingPackageError, TypeError, ValueError) as error:
        parser.error(_with_place(error, configs))
    if args.dry_run:
        print("\n".join(_plan(system, stages, configs)))
        return 0
    try:
        results = made.run([each.name for each in stages])
    except SourceError as error:
        print(f"create_dataset: {printable(str(error))}", file=sys.stderr)
        return 1
    except (ConfigError, MissingPackageError, OutputsError) as error:
        parser.error(_with_place(error, configs))
    except (ChangedRunError, FolderInUseError, SubmissionError) as error:
        print(f"{error}\n{_ANEW}" if isinstance(error, ChangedRunError) else error, file=sys.stderr)
        return 1
    (show or show_results)(results)
    return 0


def build_parser(system: type, description: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a recipe's run.py.

    Args:
        system: The system's class; its stages and the roles of its configs become options.
        description: Printed by `--help`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    alone = [each.name for each in specs_of(system) if not each.in_all]
    but = f" and has not {', '.join(alone)}" if alone else ""
    stages = f"{', '.join(stage_names(system))}; all, which is the default{but}"
    parser.add_argument("--stages", nargs="+", default=["all"], metavar="STAGE", help=stages)
    for role in _roles(system):
        usual = " or ".join(f"conf/{name}" for name in role_of(role).files)
        parser.add_argument(f"--{role}_config", metavar="CONFIG", help=f"default: {usual}")
    parser.add_argument(
        "--parallel_config",
        metavar="CONFIG",
        help="a small file with a block `parallel`, merged into that of every config; for example parallel_local",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="check everything, say what would run, and run nothing"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="infer only the first N items of each test set"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser


def show_results(results: Mapping[str, Any]) -> None:
    """Print a line for each test set that was decoded."""
    for name, result in results.get("infer", {}).items():
        if not isinstance(result, InferResult):
            continue
        if isinstance(result.run, DetachedRun):
            print(f"{name}: {result.items} utterances in {len(result.run)} jobs, {result.folder}")
        else:
            counts = f"{result.items} utterances, {result.failed} failed"
            print(f"{name}: {counts}, {result.seconds:.1f} s, {result.folder}")


def _roles(system: type) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*ROLES, *roles_of(system))))


def _check(system: type, stages: Sequence[StageSpec], configs: StageConfigs, recipe: Path) -> None:
    for each in sorted(stages, key=lambda each: each.name != "train"):  # train looks at most of its config
        role = each.role(configs.plain())
        if role is not None:
            configs.check(role, trains=each.name == "train" and is_ours(system, "train"))
            nothing = each.name == "train" and _trainer(configs[role]) == UNTRAINED
            if is_ours(system, each.name) and not nothing:
                require(configs[role], role, NEEDED.get(each.name, ()))
        elif each.roles:
            names = " or ".join(role_of(each.roles[0]).files)
            raise ConfigError(
                f"stage {each.name} reads {names}, and {recipe / 'conf'} has none: give one by "
                f"--{each.roles[0]}_config"
            )


def _plan(system: type, stages: Sequence[StageSpec], configs: StageConfigs) -> list[str]:
    lines = []
    for each in stages:
        role = each.role(configs.plain())
        if role is None:
            lines.append(f"{each.name}: reads no config of its own")
            continue
        how = _trainer if each.name == "train" and is_ours(system, "train") else _workers
        lines.append(f"{each.name}: {configs.by_role[role].file}; {how(configs[role])}")
    return lines


def _workers(config: Any) -> str:
    if config.get("parallel") is None:
        return "parallel: none, so this process"
    parsed = ParallelConfig.parse(config.get("parallel"))
    return f"parallel: {parsed.env}, {parsed.n_workers} worker{'s' if parsed.n_workers > 1 else ''}"


def _trainer(config: Any) -> str:
    if config.get("trainer") is None and config.get("optimizer") is None:
        return UNTRAINED
    block = as_plain(config.get("trainer")) or {}
    keys = ("accelerator", "devices", *(["num_nodes"] if "num_nodes" in block else []), "strategy")
    return "trainer: " + ", ".join(
        f"{key} {shown(block.get(key, 'auto'), key).strip(chr(39))}" for key in keys
    )


def _with_place(error: Exception, configs: StageConfigs) -> str:
    if not isinstance(error, StageConfigError) or error.role not in configs:
        return str(error)
    places = configs.by_role[error.role].places
    return f"{place_of(places, error.key) or configs.by_role[error.role].file}: {error}"
