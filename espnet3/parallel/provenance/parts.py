"""The parts of a module by hash, as its file has them and as they are loaded, and where two differ: in words.

Two starts of a run are compared, its files with what it has loaded, and its processes with each other.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import logging
import os
import re
import sys
import warnings
import zlib
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shortened
from espnet3.parallel.provenance import code as bytecode
from espnet3.parallel.provenance import modules
from espnet3.parallel.provenance.code import BODY, DIGITS, facts_of
from espnet3.parallel.provenance.content import PLAIN, WRAPPERS, Content, given_to, is_settings
from espnet3.parallel.provenance.modules import MAIN, compiled, locate, module_of, real

INSTALLED = "installed packages"
PUT_THERE = "what the program has put there"
FILLED = (list, dict, set)
BY_SCRIPT = "by-script"  # beside the hash of a constant that is not as its file has it
STATEMENT = "the statement of "  # and the name that it defines
VALUE = "the value of "  # and a variable's name
CONTENT = "its content"
_SETTINGS = (
    "%s: %s is another one in %s than in the one that began the run: it is made from the environment or the time, or "
    "changed by the script, which other processes do not run. Set it in its module, or in build_env_local"
)
_LARGEST = 1 << 18  # bytes of a module: a stranger may have written what is read
_ASKED = re.compile(rb"annotations__|signature|get_type_hints|get_annotations|getfullargspec")

# By module: {"file": its path, or None, "module": its name here, "code": {part: hash}, "values": {what: hash}};
# "source", packed, where a function imports it, which is taken apart where two differ, and "unloaded" where it was not
# loaded; of installed packages "elsewhere": modules that are imported and not the user's, or not there. All processes
# of a run have the same "code"
Code = dict[str, dict[str, Any]]
# By module and part, what this process has had of a value, which items may have changed; by its name: it was compared
_HAD: dict[tuple[ModuleType, str], set[str]] = {}


@lru_cache(maxsize=1 << 12)
def packed(text: bytes) -> str:
    """Return a file's text as `run.json` holds it, with how Python treats `assert` in it."""
    return f"{sys.flags.optimize}{b64encode(zlib.compress(text, 1)).decode()}"


def _text_in(source: str) -> bytes:
    reader = zlib.decompressobj()
    text = reader.decompress(b64decode(source[1:]), _LARGEST)
    if not reader.eof:
        raise ValueError("it is longer than what is read")
    return text


@lru_cache(maxsize=1 << 12)
def _parts_of_source(source: str) -> dict[str, set[str]]:
    try:
        text = _text_in(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an import shows them
            try:
                code = _compiled(_unannotated(ast.parse(text), text), source)
            except RecursionError:  # of long expressions, which Python itself compiles
                code = _compiled(text, source)
    except (SyntaxError, ValueError, zlib.error, RecursionError, MemoryError):
        return {CONTENT: {constant_hash(source)}}
    return {CONTENT: {"source"}, **parts_in(code)}


def _compiled(text: Any, source: str) -> CodeType:
    return compile(text, "<source>", "exec", dont_inherit=True, optimize=int(source[0]))


def _unannotated(tree: ast.Module, text: bytes) -> ast.Module:
    # variables and functions, unless code asks for it; what is in one has the code that Python has made of it
    left: list[Any] = [] if _ASKED.search(text) else [tree]
    for at, one in enumerate(tree.body if left else ()):
        if isinstance(one, ast.AnnAssign) and one.value is not None:
            tree.body[at] = ast.copy_location(ast.Assign([one.target], one.value), one)
    for one in left:  # which grows
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            left += ast.iter_child_nodes(one)
        elif not one.decorator_list:  # which may ask for it
            one.returns = None
            for each in ast.walk(one.args):
                if isinstance(each, ast.arg):
                    each.annotation = None
    return tree


def _unpacked(entry: dict[str, Any]) -> dict[str, Any]:
    # with the parts of its source; a value counts as it is where that is known
    found = _parts_of_source(entry["source"]) if type(entry.get("source")) is str else {}
    parts = {name: " ".join(sorted(one)) for name, one in found.items() if name not in entry["values"]}
    return {**entry, "code": {**parts, **entry["code"]}}


def functions_of(value: Any) -> list[FunctionType]:
    """Return the functions in a function, property, static method and the like."""
    if is_a(value, FunctionType):
        return [value]
    parts = [part for kind in type(value).__mro__ for part in WRAPPERS.get(kind, ()) if part != "__self__"]
    return [each for part in parts for each in functions_of(getattr(value, part))]


def changed_parts(old: Code, new: Code) -> list[str]:
    """Return the differences of two results of `code_of`, the nearest first: lines that name file and function.

    A part that only one of them has is no difference: the code that leads there differs, or it was not loaded yet.
    """
    lines = [f"{at}: it is new" for at in _come(old, new)] + [f"{at}: it is gone" for at in _come(new, old)]
    for module, mine in new.items():
        was, now = old.get(module, mine), mine
        alike = ("unloaded" in was) == ("unloaded" in now)
        if not alike or was.get("source") != now.get("source"):
            was, now = _unpacked(was), _unpacked(now)
        for kind, other in (("code", "values"), ("values", "code"))[: 1 + alike]:
            for name, one in now[kind].items():
                before, after = set(was[kind].get(name, was[other].get(name, one)).split()), set(one.split())
                if before != after and (alike or not (before < after or after < before)):
                    said = f"{name} ({', '.join(sorted(before ^ after))})" if name == PUT_THERE else name
                    lines.append(_line(module if module == INSTALLED else now["file"], module, said))
    return list(dict.fromkeys(lines))


def _come(before: Code, after: Code) -> list[str]:
    elsewhere = before.get(INSTALLED, {}).get("elsewhere", ())
    # one that is loaded may have been found by what items have put on `sys.path`
    new = [one for at, one in after.items() if at in elsewhere and at not in before]
    return [one["file"] for one in new if "unloaded" in one]


def changed_files(old: Code) -> list[str]:
    """Return the changes in the files of an earlier `code_of`, which anybody may have written; none is imported."""
    lines = []
    for at, was in old.items():
        text = modules.text_of(was["file"] or "")
        if "source" in was and text is not None and was["source"] != packed(text):
            now = _parts_of_source(packed(text))
            lines += _differences(was["file"], _unpacked(was), now, but=BY_SCRIPT)
        elif "source" not in was and text is not None and (code := compiled(at, was["file"])) is not None:
            lines += _differences(was["file"], was, parts_in(code), but=BY_SCRIPT)
    return lines


class LoadedCode:
    """The code that a run's driver has loaded, by `code_of`: its other processes must have loaded the same.

    Code of the script itself travels with the run; a module that is imported by name is compared once it is loaded.
    """

    def __init__(self, code: Code, compared: Any = None) -> None:
        script = modules.script()
        others = {key: one for key, one in code.items() if one["file"] and real(one["file"]) != script}
        self._left: Code = {key: {**one, "values": {}} for key, one in others.items()}
        loaded = [one for one in others.values() if "unloaded" not in one]
        self._settings = {real(one["file"]): one["values"] for one in loaded}
        self._compared = compared
        self._known: Any = None

    def is_used_here(self) -> bool:
        """Tell whether this process has compared what it has loaded, since items run in it."""
        return self._known is not None and self._known[0] == os.getpid()

    def check(self, where: str) -> None:
        """Compare what this process, called `where`, has loaded since it was last asked.

        Raises:
            ConfigError: It is other code; the message names module and function.
        """
        known, self._known = self._known, (os.getpid(), len(sys.modules))
        if self._known == known:
            return
        before = dict(self._left)
        if lines := self._unlike():
            # what the script has imported may register itself in another module, or patch it
            for one in [one for one in self._left.values() if "unloaded" not in one]:
                name = one["module"]
                if name not in sys.modules and real(locate(name).get(name, "")) == real(one["file"]):
                    with suppress(Exception):  # where it is needed, an import raises it again
                        importlib.import_module(name)
            self._left = before
            lines = self._unlike()
        if lines:
            raise ConfigError(
                f"{where} has loaded other code than the process that began the run: {'; '.join(shortened(lines))}. "
                "It was edited meanwhile, or loaded again in one of them: start the program again (or open another "
                'client); resume=False starts anew, resume="force" goes on with the results of both. Or the script has '
                "set it, which other processes do not run: set it in its module, or in build_env_local"
            )
        if self._compared is not None:
            self._tell_of_settings(where, is_first=known is None)

    def _tell_of_settings(self, where: str, is_first: bool) -> None:
        content = Content(modules.name_of, lenient=True)
        content.compared = self._compared
        for _, file, module in modules.own_modules():
            for part, known in self._settings.get(real(file), {}).items():
                name = part.removeprefix(VALUE)
                if name == part or name not in vars(module) or (module, name) in _HAD:
                    continue
                value, _HAD[module, name] = vars(module)[name], set()
                if is_first and is_settings(value):  # later ones the env may have set
                    now = {content.hash(one, part)[:DIGITS] for one in self._compared(name, value)}
                    if now.isdisjoint(known.split()):
                        logging.getLogger("espnet3").warning(_SETTINGS, file, part, where)

    def _unlike(self) -> list[str]:
        lines: list[str] = []
        places = {at: key for key, one in self._left.items() for at in (one["module"], real(one["file"]))}
        for name, file, module in modules.own_modules():
            key = places.get(real(file)) or places.get(MAIN[0] if name in MAIN else name, "")
            if name != MAIN[0] and (entry := self._left.pop(key, None)) is not None:
                text = modules.text_of(file) if "unloaded" in entry else None
                source = "" if text is None else packed(text)
                if source and source == entry.get("source"):
                    continue
                entry = _unpacked(entry) if "unloaded" in entry else entry
                now = _parts_of(module, os.path.basename(file), entry["code"])
                for part, found in _parts_of_source(source).items() if source else ():
                    now[part] = now.get(part, set()) | found  # a decorator may have compiled it anew
                for part in [one for one in now if one.startswith(VALUE)]:
                    now[part] = _HAD[module, part] = now[part] | _HAD.get((module, part), set())
                lines += _differences(file, entry, now)
        return lines


def _parts_of(module: ModuleType, file: str, wanted: dict[str, str]) -> dict[str, set[str]]:
    held = {f"{VALUE}{name}": value for name, value in vars(module).items()}
    known = [name for name in wanted.keys() & held.keys() if type(held[name]) in {*PLAIN, *FILLED}]
    found = {name: {filling(held[name], wanted[name] != "filled")} for name in known}
    left, seen = list(vars(module).values()), set()
    for thing in left:  # which grows
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if is_a(thing, type) and module_of(thing) == module.__name__:
            left += vars(thing).values()
        for one in functions_of(thing):
            name = getattr(one.__code__, "co_qualname", one.__qualname__)
            if name in wanted and os.path.basename(one.__code__.co_filename) == file:
                found.setdefault(name, set()).add(facts_of(one.__code__).hash)
            left += [*given_to(one).values(), vars(one).get("__wrapped__")]
    return found


@bytecode.once
def parts_in(code: CodeType) -> dict[str, set[str]]:
    """Return the parts of a module as its file has them: functions, classes, constants, statements."""
    body, functions, values = bytecode.body_of(code), bytecode.functions_in(code), dict[str, Any]()
    for name, each in functions.items():
        if len(each) > 1:  # some have one name, as lambdas and what a decorator registers have
            values[f"one of {name}"] = tuple(facts_of(one).hash for one in each)
    values |= {f"the class {name}": names for name, names in bytecode.classes_in(code).items()}
    values |= {f"{VALUE}{name}": one for name, one in body.constants.items()}
    values["the builtins that it hides"] = sorted(body.times.keys() & vars(builtins).keys())
    found = {name: {facts_of(one).hash for one in each} for name, each in functions.items()}
    found |= {name: {constant_hash(one)} for name, one in values.items()}
    others = {name: one for name, one in body.definitions.items() if name not in body.constants}
    return {BODY: {body.hash}, **found, **{f"{STATEMENT}{name}": {one} for name, one in others.items()}}


def filling(value: Any, is_literal: bool) -> str:
    """Return what another process must have of a container or constant: the same numbers and texts, or anything."""
    parts = [value] if type(value) in PLAIN else [*value, *(value.values() if type(value) is dict else ())]
    if not is_literal or not PLAIN.issuperset(map(type, parts)):
        return "filled" if value else "empty"
    if type(value) in (list, dict):  # imports may fill it in any order
        value = sorted(map(repr, value.items() if type(value) is dict else value))
    return constant_hash(value)


def constant_hash(value: Any) -> str:
    """Return the hash of a constant of code."""
    return Content(lenient=True).hash(value, "a constant")[:DIGITS]


def _differences(file: str, was: dict[str, Any], now: dict[str, set[str]], but: str = "") -> list[str]:
    parts = [(name, one.split()) for name, one in was["code"].items() if name in now]
    return [_line(file, "", name) for name, one in parts if but not in one and now[name].isdisjoint(one)]


def _line(file: str | None, module: str, name: str) -> str:
    return f"{file or f'module {module}, which has no file'}: {'a statement' if name == BODY else name} has changed"
