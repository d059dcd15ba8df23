"""A module's source as statements: what each binds and uses, and its text without comments, docstrings and layout.

Two sources with the same statements compute the same. The text of a statement is made from its syntax tree by hand, not
by `ast.dump`, whose output differs from one version of Python to the next.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from espnet3.parallel.provenance.text.names import (
    DYNAMIC,
    SCOPES,
    ImportRef,
    Scope,
    importers_of,
    names_in,
    root_of,
    stored_in,
)

REST = "<module>"  # the name of what is neither a function nor a class
_DIGITS = 16  # of a hash: enough to tell two texts apart, short enough for a file that people read


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
        sets: Names of attributes that its functions bind or change when they are called, but where an object is made.
        lines: Its first line, that of a decorator included, and its last: no part of what is compared.
    """

    binds: frozenset[str]
    touches: frozenset[str]
    uses: frozenset[str]
    imports: tuple[ImportRef, ...]
    parts: tuple[tuple[str, str], ...]
    guarded: bool = False
    defines: bool = False
    mutates: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    lines: tuple[int, int] = (0, 0)

    @property
    def sees_all(self) -> bool:
        """Whether it may use any name of its module (`globals()`, `eval`)."""
        return bool(self.uses & DYNAMIC)


def statements(source: str | bytes) -> list[Statement]:
    """Return a module's statements."""
    tree = ast.parse(source)
    return list(_flat(tree.body, _Above(importers_of(tree)), guarded=False))


@dataclass(frozen=True, slots=True)
class _Above:
    """Where a statement stands: the text and the names of the heads around it, and its module's importers."""

    importers: frozenset[str]
    prefix: str = ""
    uses: frozenset[str] = frozenset()


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _flat(body: list[ast.stmt], above: _Above, guarded: bool) -> Iterator[Statement]:
    """Yield the statements of a block; those of inner blocks carry the text of the block's head."""
    for node in body:
        heads, bodies = _block(node)
        if not bodies:
            if not _is_text(node):
                yield _statement(node, above, guarded)
            continue
        if isinstance(node, ast.If) and (never := _never_runs(node.test)) is not None:
            bodies[never] = []
        head = above.prefix + "".join(text(each) for each in heads)
        uses = above.uses.union(*(names_in(each) for each in heads))
        bound = frozenset(name for each in heads for name in stored_in(each))
        if bound:  # the target of a loop, the name of a `with`
            yield Statement(
                bound, frozenset(), uses, (), ((", ".join(sorted(bound)), digest(head)),), guarded
            )
        main = _main_branch(node.test) if isinstance(node, ast.If) else None
        for number, inner in enumerate(bodies):
            there = _Above(above.importers, f"{head}/{type(node).__name__}{number}/", uses)
            yield from _flat(inner, there, guarded or number == main)


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


def _main_branch(test: ast.expr) -> int | None:
    """Return which branch of an `if` runs only in the program itself: 0 the first, 1 its `else`, None neither."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or "__name__" not in names_in(test):
        return None
    sides = (test.left, *test.comparators)
    if not any(isinstance(one, ast.Constant) and one.value == "__main__" for one in sides):
        return None
    return 0 if isinstance(test.ops[0], ast.Eq) else 1 if isinstance(test.ops[0], ast.NotEq) else None


def _never_runs(test: ast.expr) -> int | None:
    """Return which branch of an `if` is for type checkers alone: 0 the first, 1 its `else`, None neither."""
    turned = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    bare = test.operand if isinstance(test, ast.UnaryOp) and turned else test
    name = getattr(bare, "id", None) or getattr(bare, "attr", None)
    return None if name != "TYPE_CHECKING" else 1 if turned else 0


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a mere constant: a docstring, or a text in place of a comment."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statement(node: ast.stmt, above: _Above, guarded: bool) -> Statement:
    defines = isinstance(node, (*SCOPES, ast.ClassDef))
    scope = Scope(above.importers)
    scope.visit(node)
    parts = tuple((name, digest(above.prefix + one)) for name, one in _parts(node))
    return Statement(
        frozenset(scope.stores),
        frozenset() if defines else frozenset(_touched(node)),
        above.uses | scope.loads,
        tuple(scope.imports),
        parts,
        guarded,
        defines,
        frozenset(scope.mutates) if defines else frozenset(),
        frozenset(scope.sets) if defines else frozenset(),
        (first_line(node), node.end_lineno or node.lineno),
    )


def _parts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each part of a statement."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name, text(node)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):  # one by one: their order is layout
        for alias in node.names:
            where = f"{'.' * node.level}{node.module or ''}" if isinstance(node, ast.ImportFrom) else ""
            shown = f"* of {where}" if alias.name == "*" else alias.asname or alias.name
            yield f"the import of {shown}", f"{where} {alias.name} {alias.asname or ''}"
        return
    if not isinstance(node, ast.ClassDef):
        names = sorted({*stored_in(node), *_touched(node)})
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


def _touched(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose value a statement changes in place."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Attribute, ast.Subscript)) and not isinstance(each.ctx, ast.Load):
            yield from root_of(each)
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        yield from root_of(call.func)


def first_line(node: ast.expr | ast.stmt) -> int:
    """Return the line that compiled code gives as its first: that of the first decorator, where there is one."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(node.lineno, *(each.lineno for each in decorators)) if decorators else node.lineno
