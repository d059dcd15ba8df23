"""A `queue.conf`, `slurm.conf` or `pbs.conf`: how options such as `--mem 4G` become flags of the submit command.

command sbatch --export=PATH        the submit command, with the flags that every job has
default gpu=0                       an option that is given where the caller does not
option mem=* --mem-per-cpu $0       what `--mem 4G` becomes; $0 is its value
option mem=0                        the same for one value; here it becomes nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from espnet3.cli.migrate.origin import Origin, Setting, mistake

_COMMENT = re.compile(r"\s*#.*")
_COMMAND = re.compile(r"command\s+(.+)")
_OPTION = re.compile(r"option\s+([^=\s]+)=(\S+)\s*(.*)")
_DEFAULT = re.compile(r"default\s+(\S+?)=(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Rule:
    """What an option becomes.

    Attributes:
        option: Its name without `--`, with `_` for `-`.
        value: The value that the rule is for; "*": any other.
        flags: The flags of the submit command; `$0` stands for the value.
        origin: The line.
    """

    option: str
    value: str
    flags: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class OptionsFile:
    """One such file.

    Attributes:
        name: The file, as the user named it.
        command: The submit command with its flags.
        rules: What options become, in the order of the file.
        defaults: Options that are given where the caller does not, by name.
    """

    name: str
    command: Setting
    rules: tuple[Rule, ...]
    defaults: dict[str, Setting]

    def rule(self, option: str, value: str) -> Rule | None:
        """Return the rule for an option: that of its value, or that of any value; None: there is neither."""
        fitting = {rule.value: rule for rule in self.rules if rule.option == option}
        return fitting.get(value, fitting.get("*"))


def read_options(name: str, lines: Iterable[str], *, numbered: bool = True) -> OptionsFile:
    """Read such a file."""
    command: Setting | None = None
    rules: list[Rule] = []
    defaults: dict[str, Setting] = {}
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line).strip()
        origin = Origin(name, number if numbered else 0)
        if not text:
            continue
        if found := _COMMAND.fullmatch(text):
            command = Setting(found[1], origin)
        elif found := _OPTION.fullmatch(text):
            if found[2] == "*" and found[3] and "$0" not in found[3]:
                raise mistake(
                    origin,
                    f"{text!r} has no $0, so the value of --{_dashed(found[1])} would be lost; write $0 where it "
                    f"belongs, or name one value, such as option {found[1]}=1",
                )
            rules.append(Rule(found[1], found[2], found[3], origin))
        elif found := _DEFAULT.fullmatch(text):
            defaults[found[1]] = Setting(found[2], origin)
        else:
            raise mistake(
                origin,
                f"{text!r} cannot be read; a line is 'command ...', 'option name=value flags' or 'default name=value', "
                "without spaces around the =",
            )
    if command is None:
        raise mistake(Origin(name), "no line says 'command sbatch ...' or 'command qsub ...'; add it")
    return OptionsFile(name, command, tuple(rules), defaults)


def _dashed(option: str) -> str:
    return option.replace("_", "-")
