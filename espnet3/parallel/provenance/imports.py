"""The modules of the user's that code leads to by its imports and by texts that name one, and an entry for each.

A module that is loaded counts by what it has of the names in that code, one that a function imports by its file, too:
it may not be loaded yet. Where a name is made at run time, any module that it may mean counts.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Iterable, Set
from functools import cache
from types import CodeType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance import NAMESPACES, modules
from espnet3.parallel.provenance import code as bytecode
from espnet3.parallel.provenance.content import Content, as_containers
from espnet3.parallel.provenance.modules import MAIN, compiled, is_own, locate, real
from espnet3.parallel.provenance.parts import CONTENT, Code, constant_hash, packed, parts_in

NOTHING = compile("", "<nothing>", "exec")  # of a module that has no file
_FEW = 100  # parts of a value that may hold the name of a module
WORD = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[\w.]*[\w][.:]\w+")
_IMPORTERS = frozenset({"import_module", "__import__", "get_class", "get_method", "get_object", "get_static_method",
    "instantiate", "locate", "modules", "spec_from_file_location", "run_path", "run_module",
    "SourceFileLoader"})  # fmt: skip
_LISTERS = {"iter_modules", "walk_packages", "listdir", "scandir", "glob", "iterdir"}
_OF_HYDRA = {"hydra", "hydra.utils"}
# what shows all names, and the module that has it: models of torch have methods `eval` and `modules`
_BUILTINS = {"builtins", id(builtins)}
SEES_ALL = {"globals": _BUILTINS, "eval": _BUILTINS, "exec": _BUILTINS, "modules": {"sys", id(sys)}}


class Imports(Content):
    """Gathers modules; a subclass looks into those that are loaded."""

    def __init__(self, config: Any) -> None:
        super().__init__(cache(modules.name_of), lenient=True)
        modules.look_again()  # nothing is imported from here on
        _own_module.cache_clear()
        self._said = texts_in(config)  # which may name a module
        self._far: set[str] = set()  # texts with a dot or a colon that any code has
        self._mentioned: set[str] = set()  # names and texts of all code
        self._any: dict[ModuleType, None] = {}  # modules that code hands on, or that it may import by a name
        # code that imports by name, its package, and texts
        self._importers: list[tuple[CodeType, str, set[str]]] = []
        self._elsewhere: set[str] = set()
        self.installed: set[str] = set()  # import names of packages, the standard library's included
        self._later: set[str] = set()  # modules that functions import: what they register is not there yet
        self._seen: dict[Any, Any] = {}
        self._entries: Code = {}
        self._places: dict[tuple[str, str], dict[str, Any]] = {}
        self._loaded = modules.own_modules()

    def _of_module(self, module: ModuleType, names: frozenset[str]) -> None:
        raise NotImplementedError

    def _is_new(self, key: Any, thing: Any = None) -> bool:
        is_new = key not in self._seen
        self._seen[key] = thing  # kept, so that no other thing gets its identity
        return is_new

    def _entry(self, module: str, of_code: str = "") -> dict[str, Any]:
        if (module, of_code) not in self._places:
            file = of_code or modules.file_of(module)
            name, known = modules.name_of(module, file), self._entries.get
            here = os.path.isfile(file or "") and real(file or "")  # cells of a notebook are in no file
            while here and os.path.isfile(at := known(name, {}).get("file") or "") and real(at) != here:
                name += "'"  # another folder has one of that name
            new: dict[str, Any] = {"file": file, "module": module, "code": {}, "values": {}}
            self._places[module, of_code] = self._entries.setdefault(name, new)
        return self._places[module, of_code]

    def _imports(self, code: CodeType, package: str, also: Iterable[str], texts: Set[str]) -> None:
        names, said = bytecode.words_in(code)
        for dotted, known in bytecode.imports_in(code, package):
            self._module(dotted, names)
            file, above = (locate(dotted).get(one, "") for one in (dotted, dotted.rpartition(".")[0]))
            may_be_module = known in ("", "*") or (modules.is_init(above) and is_own(above))
            if may_be_module and not (file and is_own(file)):
                self._elsewhere.add(dotted)
        self._mentioned |= names | said | texts
        self._far.update(text for text in said | texts if _DOTTED.fullmatch(text))
        # ESPnet's tables of classes have a method `get_class`
        others = set() if _OF_HYDRA & {*names, *also} else {"get_class"}
        if not _IMPORTERS.isdisjoint({*names - SEES_ALL.keys() - others, *also}):
            self._importers.append((code, package, self._said.union(said, texts)))

    def _by_name(self, code: CodeType, package: str, near: set[str]) -> None:
        # a text may name a module or what is in it, also one of the function that calls this code
        found, (names, texts) = False, bytecode.words_in(code)
        names = names.union(near, WORD.findall(" ".join(near)))
        for text in near | self._far:
            for above in near | {package} if text[:1] == "." else ("",):
                if dotted := _own_module(text, above):
                    file = locate(dotted).get(dotted, "")
                    # of a package's name one of its modules may be meant
                    is_one = text in texts and file != "" and not modules.is_init(file)
                    found = found or is_one or bool(text in near and _DOTTED.fullmatch(text))
                    self._module(dotted, names | frozenset(dotted.split(".")))
        if not found:  # by a name made at run time: any module may be meant
            self._any |= dict.fromkeys(live for *_, live in self._loaded)
            here, outer = os.path.dirname(code.co_filename), package.split(".") if package else []
            places = {package: here, "": os.path.join(here, *[os.pardir] * len(outer))}
            for begin in {re.split("[%{]", one)[0].rstrip(".") for one in near}:  # "nets" of f"nets.{name}"
                if modules.is_init(file := locate(begin).get(begin, "")):
                    places[begin] = os.path.dirname(file)
            for name, folder in places.items():
                self._beside(folder, name, names)

    def _beside(self, folder: str, package: str, names: frozenset[str], outer: tuple[str, ...] = ()) -> None:
        # the modules of a folder that any code names, and all of them for code that lists the folder it is in
        is_all = bool(_LISTERS & names and {"__path__", "__file__"} & names)
        here, found = real(folder), list[str]()
        for name in modules.names_in(folder) if here not in outer else ():
            dotted, variants = f"{package}.{name}".lstrip("."), {name, name.title().replace("_", "")}
            if is_all or variants & names or variants & self._mentioned:
                file = locate(dotted).get(dotted, "")
                if os.access(file, os.R_OK) and is_own(file) and real(file) != modules.script():
                    found.append(name)
                    self._module(dotted, names)
                    if modules.is_init(file):
                        self._beside(os.path.dirname(file), dotted, names, (*outer, here))
        if is_all and package:
            home = self._entry(package, locate(package).get(package, ""))
            home["code"][f"the list of modules of {package}"] = {constant_hash(found)}

    def _module(self, dotted: str, names: frozenset[str], is_imported: bool = True) -> None:
        for name, file in locate(dotted).items():
            live = sys.modules.get(name)
            if not is_own(file):
                self.installed.add(name.partition(".")[0])
                continue
            if live is not None:
                self._of_module(live, names)
            if (live is None or (is_imported and name not in MAIN)) and self._is_new(file):
                self._file(name, file)

    def _file(self, name: str, file: str) -> None:
        # what an import would run; of a module that is loaded, what it has made of that counts, too
        self._later.add(name)
        entry, code, text = self._entry(name, file), compiled(name, file), modules.text_of(file)
        if text is not None:
            entry["source"] = packed(text)
        elif code is None:
            with open(file, "rb") as stream:
                entry["code"][CONTENT] = {constant_hash(stream.read())}
        package = name if modules.is_init(file) else name.rpartition(".")[0]
        if name not in sys.modules:
            entry["unloaded"] = True
            for part, hashes in parts_in(code).items() if code is not None and text is None else ():
                entry["code"].setdefault(part, set()).update(hashes)
            self._imports(NOTHING if code is None else code, package, (), set())
        else:
            for dotted, _ in bytecode.imports_in(NOTHING if code is None else code, package, True):
                self._module(dotted, frozenset())


@cache
def _own_module(text: str, above: str) -> str:
    dots = len(text) - len(text.lstrip("."))
    dotted = modules.absolute(text[dots:].replace(":", "."), dots, above)
    is_name = text[-1:] != "." and dotted.replace(".", "").isidentifier()
    return dotted if is_name and any(map(is_own, locate(dotted).values())) else ""


def texts_in(value: Any) -> set[str]:
    """Return the texts in a value's containers, but for those of many parts."""
    found, left = dict[int, Any](), [value]
    for one in left:  # which grows; parts may hold each other
        if id(one) not in found:
            found[id(one)], held = one, as_containers(one)
            if (type(one).__name__, type(one).__module__) in NAMESPACES:
                held = vars(one)
            parts = dict.values(held) if is_a(held, dict) else held if type(held) in (list, tuple) else ()
            left += parts if len(parts) < _FEW else ()  # a table names no module
    return {one for one in found.values() if type(one) is str}
