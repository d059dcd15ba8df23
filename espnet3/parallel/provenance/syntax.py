"""A module's source as statements: what each binds and uses, and its text without comments, docstrings and layout.

Two sources with the same statements compute the same. The text of a statement is made from its syntax tree by hand, not
by `ast.dump`, whose output differs from one version of Python to the next.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

REST = "<module>"  # the name of what is neither a function nor a class
_DIGITS = 16  # of a hash: enough to tell two texts apart, short enough for a file that people read
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DYNAMIC = frozenset({"globals", "eval", "exec"})  # whoever calls one of these may use any name of its module
_IMPORTERS = frozenset({"import_module", "__import__"})
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


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at a module's top level, or inside an `if`, `try`, `with` or loop there.

    Attributes:
        binds: Names it gives a value to.
        touches: Names whose value it changes in place: `TABLE["x"] = f`, `TABLE.update(...)`, `Class.scale = 2`.
        uses: Names of the module that it may read, now or when what it defines is called.
        imports: What it imports, now or then.
        parts: The hash of its text by name: a function, a class and each of its methods have one of their own.
        guarded: It runs only where the file is the program (`if __name__ == "__main__"`).
        defines: It is a function or a class.
        mutates: Names of the module that its functions bind or change when they are called.
    """

    binds: frozenset[str]
    touches: frozenset[str]
    uses: frozenset[str]
    imports: tuple[ImportRef, ...]
    parts: tuple[tuple[str, str], ...]
    guarded: bool = False
    defines: bool = False
    mutates: frozenset[str] = frozenset()

    @property
    def sees_all(self) -> bool:
        """Whether it may use any name of its module (`globals()`, `eval`)."""
        return bool(self.uses & _DYNAMIC)


def statements(source: str | bytes) -> list[Statement]:
    """Return a module's statements.

    Raises:
        SyntaxError: It is not Python.
        ValueError: It holds null bytes.
    """
    return list(_flat(ast.parse(source).body, "", frozenset(), guarded=False))


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _flat(body: list[ast.stmt], prefix: str, above: frozenset[str], guarded: bool) -> Iterator[Statement]:
    """Yield the statements of a block; those of inner blocks carry the text of the block's head."""
    for node in body:
        heads, bodies = _block(node)
        if not bodies:
            if not _is_text(node):
                yield _statement(node, prefix, above, guarded)
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in _names(node.test):
            bodies = [node.orelse]  # the other branch never runs
        head = prefix + "".join(text(each) for each in heads)
        uses = above.union(*(_names(each) for each in heads))
        bound = frozenset(name for each in heads for name in _stored(each))
        if bound:  # the target of a loop, the name of a `with`
            yield Statement(bound, frozenset(), uses, (), ((REST, digest(head)),), guarded)
        main = guarded or (isinstance(node, ast.If) and _is_main_guard(node.test))
        for number, inner in enumerate(bodies):
            yield from _flat(inner, f"{head}/{type(node).__name__}{number}/", uses, main and number == 0)


def _block(node: ast.stmt) -> tuple[list[ast.AST], list[list[ast.stmt]]]:
    """Return the heads and the bodies of a compound statement that is no definition."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test], [node.body, node.orelse]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.target, node.iter], [node.body, node.orelse]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [*node.items], [node.body]
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        handlers = node.handlers  # type: ignore[attr-defined]  # TryStar is new in 3.11
        kinds = [handler.type for handler in handlers if handler.type is not None]
        bodies = [handler.body for handler in handlers]
        return kinds, [node.body, *bodies, node.orelse, node.finalbody]  # type: ignore[attr-defined]  # as above
    return [], []


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and "__name__" in _names(test)


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a mere constant: a docstring, or a text in place of a comment."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statement(node: ast.stmt, prefix: str, above: frozenset[str], guarded: bool) -> Statement:
    defines = isinstance(node, (*_SCOPES, ast.ClassDef))
    scope = _Scope()
    scope.visit(node)
    parts = tuple((name, digest(prefix + one)) for name, one in _parts(node))
    uses = above | scope.loads
    touches = frozenset() if defines else frozenset(_touched(node))
    mutates = frozenset(scope.mutates) if defines else frozenset()
    return Statement(
        frozenset(scope.stores), touches, uses, tuple(scope.imports), parts, guarded, defines, mutates
    )


def _parts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each part of a statement."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name, text(node)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):  # one by one: their order is layout
        for alias in node.names:
            where = f"{'.' * node.level}{node.module or ''}" if isinstance(node, ast.ImportFrom) else ""
            yield f"the import of {alias.asname or alias.name}", f"{where} {alias.name} {alias.asname or ''}"
        return
    if not isinstance(node, ast.ClassDef):
        names = sorted({*_stored(node), *_touched(node)})
        yield ", ".join(names) or REST, text(node)
        return
    methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    rest = [each for each in node.body if each not in methods]
    heads = [*node.decorator_list, *node.bases, *node.keywords, *rest]
    yield (
        node.name,
        f"class {node.name}(" + "".join(text(each) for each in heads if not _is_constant(each)) + ")",
    )
    for method in methods:
        yield f"{node.name}.{method.name}", text(method)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt) and _is_text(node)


def text(node: object) -> str:
    """Return a tree as text: the same for the same code, whatever its layout and the version of Python."""
    out: list[str] = []
    _write(node, out)
    return "".join(out)


def _write(node: object, out: list[str]) -> None:
    if isinstance(node, ast.Constant):
        out.append(f"<{type(node.value).__name__} {node.value!r}>")
    elif isinstance(node, ast.AST):
        out.append(f"({type(node).__name__}")
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in ("type_comment", "ctx", "kind"):
                continue
            out.append(f" {name}=")
            _write(value, out)
        out.append(")")
    elif isinstance(node, list):
        out.append("[")
        for each in node:
            if not _is_constant(each):
                _write(each, out)
        out.append("]")
    else:
        out.append(repr(node))


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _stored(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _touched(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose value a statement changes in place."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Attribute, ast.Subscript)) and not isinstance(each.ctx, ast.Load):
            yield from _root(each)
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        yield from _root(call.func)


def _root(node: ast.expr) -> Iterator[str]:
    """Yield the name that a chain such as `a.b[c].d` begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


@dataclass(slots=True)
class _Scope:
    """Gathers the names of the module that a statement uses, its inner functions and classes included."""

    loads: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    mutates: set[str] = field(default_factory=set)
    imports: list[ImportRef] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)

    def visit(self, node: ast.AST | None) -> None:
        """Take in a tree, in the scope it stands in."""
        if node is None:
            return
        if isinstance(node, _SCOPES):
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
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            self.mutates.update(_root(node))

    def _call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if name in _IMPORTERS:
            first = node.args[0] if node.args else None
            known = isinstance(first, ast.Constant) and isinstance(first.value, str)
            self.imports.append(ImportRef(first.value if known else None))  # type: ignore[union-attr]  # a Constant
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGERS:
            self.mutates.update(_root(node.func))

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
        self._inner(node.body, local)

    def _class(self, node: ast.ClassDef) -> None:
        self.stores.add(node.name)
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        inner = _Scope()
        for each in node.body:
            inner.visit(each)
        # a name that the class body binds may be read there before, and then is the module's
        self._take(inner, inner.loads)

    def _inner(self, body: Iterable[ast.AST], local: set[str]) -> None:
        inner = _Scope()
        for each in body:
            inner.visit(each)
        local |= inner.stores - inner.globals
        inner.mutates -= local
        self.mutates |= inner.stores & inner.globals
        self._take(inner, inner.loads - local)

    def _take(self, inner: _Scope, loads: set[str]) -> None:
        self.loads |= loads
        self.mutates |= inner.mutates
        self.imports += inner.imports
