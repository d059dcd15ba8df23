"""A command of cmd.sh, such as `queue.pl --mem 4G -l arch=*64*`, and the flags that its scheduler is given for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from espnet3.cli.migrate.options_file import OptionsFile
from espnet3.cli.migrate.origin import Setting, mistake
from espnet3.cli.migrate.scripts import SCRIPTS, KaldiScript
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

_ALONE = ("-V", "-cwd", "-notify")  # flags of qsub without a value
_NOT_FLAGS = ("config", "max_jobs_run")  # options that the scripts read themselves
_EMPTY = ("mem", "gpu", "num_threads", "name", "time")  # where no flags mean: as the site has it
_DASHES = str.maketrans("\u2010\u2011\u2012\u2013\u2014\u2212", "------")


@dataclass(frozen=True, slots=True)
class Call:
    """A command, taken apart.

    Attributes:
        variable: What cmd.sh calls it, such as "decode_cmd".
        setting: The whole of it.
        script: Its script.
        options: Its options by name, without `--`, with `_` for `-`.
        flags: What it hands to the submit command as it is.
    """

    variable: str
    setting: Setting
    script: KaldiScript
    options: dict[str, Setting]
    flags: str


@dataclass(frozen=True, slots=True)
class Given:
    """Flags that the submit command is given, and why.

    Attributes:
        flags: As they would stand on its command line.
        why: Where they come from.
    """

    flags: str
    why: str

    def words(self) -> list[str]:
        """Return the words of the flags, as the shell of the submit command separates them."""
        try:
            return shlex.split(self.flags)
        except ValueError as error:
            raise ConfigError(f"{self.why}: {self.flags!r}: {str(error).lower()}") from error


def read_call(variable: str, setting: Setting) -> Call:
    """Take a command apart."""
    # the shell separates the words of "${decode_cmd}" at spaces alone: quotation marks within are letters
    words = setting.value.split()
    if not words:
        raise mistake(setting.origin, f"{variable} is empty; write a command such as run.pl or queue.pl")
    if os.path.basename(words[0]) == "retry.pl":  # [--num-tries N] and the command that it tries again
        words = words[3 if words[1:2] == ["--num-tries"] else 1 :] or words
    script = SCRIPTS.get(os.path.basename(words[0]))
    if script is None:
        guess = did_you_mean(os.path.basename(words[0]), SCRIPTS)
        raise mistake(
            setting.origin,
            f"{variable} = {shown(setting.value)}: {words[0]} is no script of Kaldi that is known here.{guess} "
            f"Known: {', '.join(SCRIPTS)}",
        )
    options: dict[str, Setting] = {}
    flags: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        plain = word.translate(_DASHES)
        if plain != word and plain.startswith("-"):
            raise mistake(
                setting.origin,
                f"{variable}: {word!r} has a typographic dash, as text copied from a page does; write {plain!r}",
            )
        if not word.startswith("-"):
            raise mistake(
                setting.origin,
                f"{variable}: {script.name} would take {word!r} for its log file, since it is neither an option nor "
                "the value of one; write the option before it, or put a comma instead of the space",
            )
        if word in _ALONE:
            flags.append(word)
            continue
        option = f"{variable}: {word} of {script.name}"
        value = _value(rest, option, setting)
        if word.startswith("--"):
            options[word[2:].replace("-", "_")] = Setting(value, setting.origin)
        else:
            # -pe smp 4
            flags += [word, value, *([_value(rest, option, setting)] if word == "-pe" else [])]
    return Call(variable, setting, script, options, " ".join(flags))


def _value(rest: Iterator[str], option: str, setting: Setting) -> str:
    value = next(rest, None)
    if value is None or value.startswith("--"):
        found = "nothing comes after it" if value is None else f"{value!r} comes after it"
        raise mistake(setting.origin, f"{option} needs a value, but {found}; write one")
    return value


def flags_of(call: Call, file: OptionsFile, notes: list[str]) -> list[Given]:
    """Return the flags that the submit command is given for a call, those that count least first."""
    # in the order of queue.pl and slurm.pl: what the file of options adds counts more than what cmd.sh hands through
    found = [
        Given(file.command.value.partition(" ")[2], str(file.command.origin)),
        Given(call.flags, f"{call.setting.origin}, {call.variable}"),
    ]
    wanted = {name: setting for name, setting in file.defaults.items() if name not in call.options}
    for name, setting in {**wanted, **call.options}.items():
        if name in _NOT_FLAGS:
            continue
        said = f"--{name.replace('_', '-')} {setting.value} of {setting.origin}"
        if name in wanted:
            said = (
                f"the default {name}={setting.value}{f' of {setting.origin}' if setting.origin.line else ''}"
            )
        rule = file.rule(name, setting.value)
        if rule is not None and not rule.flags and name not in _EMPTY:
            notes.append(f"{said}: it gives the scheduler nothing; n_workers bounds the jobs here")
        elif rule is not None:
            found.append(Given(rule.flags.replace("$0", setting.value), f"{rule.origin}, {said}"))
        elif call.script.strict:
            raise mistake(
                setting.origin,
                f"{call.variable}: {call.script.name} refuses {said}: {file.name} has no line 'option {name}=*'; add "
                "one that says what it means to the scheduler, or leave the option out",
            )
        else:
            notes.append(f"{said}: {file.name} has no rule for it, so {call.script.name} ignored it")
    return found
