"""The names and imports in a stretch of a module's source: what it reads, binds, changes and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_IMPORTERS = frozenset({"import_module", "__import__"})
_FINDERS = frozenset(  # Hydra's: what they import is a module, a class or a function by its dotted name
    {"get_class", "get_method", "get_object", "get_static_method"}
)
_BY_PATH = frozenset({"spec_from_file_location", "run_path", "run_module", "SourceFileLoader"})
_ANY_MODULE = frozenset({"__subclasses__"})  # methods that lead to whatever has been imported
DYNAMIC = frozenset({"globals", "eval", "exec"})  # whoever calls one of these may use any name of its module
SEES_ALL = DYNAMIC | _ANY_MODULE
# run where a class or an instance is made: what these set is there before an item can see it
_MAKERS = frozenset(
    {"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"}
)
CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)


@dataclass(frozen=True, slots=True)
class ImportRef:
    """One imported name: `from {module} import {name}`, or `import {module}` where the name is empty.

    Attributes:
        module: As written; None where it is made at run time, so that nobody can say what it is.
        name: What is imported from it.
        level: The dots of a relative import.
    """

    module: str | None
    name: str = ""
    level: int = 0


def importers_of(tree: ast.AST) -> frozenset[str]:
    """Return what functions that import by name are called in a module: `import_module as load` too."""
    aliases = (one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names)
    return _IMPORTERS.union(one.asname for one in aliases if one.asname and one.name in _IMPORTERS)


def names_in(node: ast.AST) -> frozenset[str]:
    """Return all names in a tree."""
    return frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def stored_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a tree gives a value to."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def root_of(node: ast.expr) -> Iterator[str]:
    """Yield the name that a chain such as `a.b[c].d` begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _attributes(node: ast.expr) -> Iterator[str]:
    """Yield the names of the attributes in a chain such as `a.b[c].d`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        node = node.value


def _imported(name: ast.expr | None, package: ast.expr | None) -> ImportRef:
    """Return what a call of `import_module` imports, as far as its text says it."""
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        return ImportRef(None)
    bare = name.value.lstrip(".")
    if bare == name.value:
        return ImportRef(bare)
    if isinstance(package, ast.Constant) and isinstance(package.value, str):
        above = package.value.split(".")
        up = len(name.value) - len(bare) - 1
        return ImportRef(".".join([*above[: len(above) - up], bare]))
    here = getattr(package, "id", None) == "__package__"
    return ImportRef(bare, "", len(name.value) - len(bare)) if here else ImportRef(None)


@dataclass(slots=True)
class Scope:
    """Gathers the names of the module that a statement uses, its inner functions and classes included."""

    importers: frozenset[str] = _IMPORTERS
    loads: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    mutates: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    imports: list[ImportRef] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)

    def visit(self, node: ast.AST | None) -> None:
        """Take in a tree, in the scope it stands in."""
        if node is None:
            return
        if isinstance(node, SCOPES):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, _COMPREHENSIONS):
            self._inner(ast.iter_child_nodes(node), set())
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        else:
            self._note(node)
            for child in ast.iter_child_nodes(node):
                self.visit(child)

    def _note(self, node: ast.AST) -> None:
        """Take in what a node itself says of names."""
        if isinstance(node, ast.Name):
            (self.loads if isinstance(node.ctx, ast.Load) else self.stores).add(node.id)
        elif isinstance(node, ast.Global):
            self.globals.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self.stores.add(node.name)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            self._reach(node)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            self._targets(
                one for key, one in pairs if isinstance(key, ast.Constant) and key.value == "_target_"
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "_target_" in stored_in(node):
            self._targets([node.value])

    def _reach(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.mutates.update(root_of(node))
            self.sets.update(_attributes(node))
        elif isinstance(node, ast.Attribute) and (
            node.attr in _ANY_MODULE or (node.attr == "modules" and "sys" in root_of(node))
        ):
            self.imports.append(ImportRef(None))

    def _targets(self, values: Iterable[ast.expr | None]) -> None:
        """Take in what Hydra makes of a `_target_` that stands in the code."""
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.imports.append(ImportRef(value.value))

    def _call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        given = {one.arg: one.value for one in node.keywords}
        if name in self.importers or name in _FINDERS:
            first = node.args[0] if node.args else given.get("name")
            self.imports.append(
                _imported(first, node.args[1] if len(node.args) > 1 else given.get("package"))
            )
        elif name in _BY_PATH:
            self.imports.append(ImportRef(None))
        self._targets([given.get("_target_")])
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGERS:
            self.mutates.update(root_of(node.func))
            self.sets.update(_attributes(node.func.value))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self.stores.add(alias.asname or alias.name.partition(".")[0])
                self.imports.append(ImportRef(alias.name))
            else:
                self.stores.add(alias.asname or alias.name)
                self.imports.append(ImportRef(node.module or "", alias.name, node.level))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for default in (*arguments.defaults, *arguments.kw_defaults):
            self.visit(default)
        everyone = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        both = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        local = {each.arg for each in (*everyone, *both)}
        if isinstance(node, ast.Lambda):
            self._inner([node.body], local)
            return
        self.stores.add(node.name)
        for each in (*node.decorator_list, node.returns, *(one.annotation for one in (*everyone, *both))):
            self.visit(each)
        sets = set(self.sets)
        self._inner(node.body, local)
        if node.name in _MAKERS:
            self.sets = sets

    def _class(self, node: ast.ClassDef) -> None:
        self.stores.add(node.name)
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        inner = Scope(self.importers)
        for each in node.body:
            inner.visit(each)
        # a name that the class body binds may be read there before, and then is the module's
        self._take(inner, inner.loads)

    def _inner(self, body: Iterable[ast.AST], local: set[str]) -> None:
        inner = Scope(self.importers)
        for each in body:
            inner.visit(each)
        local |= inner.stores - inner.globals
        inner.mutates -= local
        self.mutates |= inner.stores & inner.globals
        self._take(inner, inner.loads - local)

    def _take(self, inner: Scope, loads: set[str]) -> None:
        self.loads |= loads
        self.mutates |= inner.mutates
        self.sets |= inner.sets
        self.imports += inner.imports
