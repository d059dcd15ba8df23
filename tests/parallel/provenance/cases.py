"""Programs of a user's that are started twice, the second time edited or with another argument."""

from __future__ import annotations

HEAD = """
import abc, argparse, collections, dataclasses, enum, functools, operator, os, string, sys, threading, types, typing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from espnet3.parallel import BaseRunner, EnvironmentProvider

class P(EnvironmentProvider):
    def build_env_local(self):
        return {"c": self.config["x"]} if self.config else {}
"""
TAIL = """
def made(config=None):
    return R(P(config))

if "main" not in globals():
    main = made
"""
RUN = """
class R(BaseRunner):
    @staticmethod
    def forward(idx):
        return RETURNED
"""


def program(before: str, returned: str = "") -> str:
    """Return a program: what stands before the runner, and what its `forward` returns."""
    return HEAD + before + "\n" + (RUN.replace("RETURNED", returned) if returned else "") + TAIL


_MANUAL = """
class R(BaseRunner):
    @staticmethod
    def forward(idx, k):
        return idx * k

class P(EnvironmentProvider):
    INIT
    def build_env_local(self):
        return {"k": BUILT}

def main():
    n = GIVEN
    p = MADE
    AFTER
    return R(p)
"""


def _by_hand(built: str, made: str = "P({})", after: str = "pass", init: str = "pass") -> str:
    text = HEAD + _MANUAL
    for name, value in {"BUILT": built, "MADE": made, "AFTER": after, "INIT": init}.items():
        text = text.replace(name, value)
    return text


# GIVEN is a number from the command line.
GIVEN = {
    "a NamedTuple": program("class C(typing.NamedTuple):\n    k: int\nCFG = C(GIVEN)", "idx * CFG.k"),
    "a class of an ABC": program(
        "class B(abc.ABC): pass\n@dataclasses.dataclass\nclass C(B):\n    k: int\nCFG = C(GIVEN)", "idx * CFG.k"),
    "a generic class": program(
        "T = typing.TypeVar('T')\nclass C(typing.Generic[T]):\n    def __init__(self, k): self.k = k\nCFG = C(GIVEN)",
        "idx * CFG.k"),
    "a class of a protocol": program(
        "class B(typing.Protocol):\n    k: int\nclass C(B):\n    def __init__(self, k): self.k = k\nCFG = C(GIVEN)",
        "idx * CFG.k"),
    "a UserDict": program("CFG = collections.UserDict(k=GIVEN)", "idx * CFG['k']"),
    "an object with a lock": program(
        "class C:\n    def __init__(self, k):\n        self.k = k\n        self.lock = threading.Lock()\n"
        "CFG = C(GIVEN)",
        "idx * CFG.k"),
    "a constructor that calls a method": program(
        "class C:\n    def __init__(self, k): self.setup(k)\n    def setup(self, k): self.k = k\nCFG = C(GIVEN)",
        "idx * CFG.k"),
    "an attribute that another class's method sets": program(
        "class O:\n    def grow(self): self.k = 3\nclass C:\n    def __init__(self, k): self.k = k\n"
        "CFG = C(GIVEN)\nO()",
        "O().grow() or idx * CFG.k"),
    "a property with a setter": program(
        "class C:\n    @property\n    def k(self): return self._k\n    @k.setter\n    def k(self, v): self._k = v\n"
        "CFG = C()\nCFG.k = GIVEN", "idx * CFG.k"),
    "attributes by their names": program(
        "class C:\n    def __init__(self, **k): self.__dict__.update(k)\nCFG = C(k=GIVEN)", "idx * CFG.k"),
    "a template": program("T = string.Template(str(GIVEN) + ' $x')", "T.substitute(x=idx)"),
    "a global that main sets": program(
        "K = None\ndef main():\n    global K\n    K = GIVEN\n    return made()", "idx * K"),
    "a global that another function sets": program(
        "K = 0\ndef configure(k):\n    global K\n    K = k\ndef use(x): return x * K\nconfigure(GIVEN)", "use(idx)"),
    "an object with a method that sets": program(
        "class S:\n    def __init__(s, k): s.k = k\n    def bump(s): s.k = s.k\nCFG = S(GIVEN)", "idx * CFG.k"),
    "an argument of a decorator": program(
        "def scaled(n):\n    def deco(f):\n        def w(x): return f(x) * n\n        return w\n    return deco\n"
        "@scaled(GIVEN)\ndef use(x): return x + 1", "use(idx)"),
    "an object that decorates": program(
        "class scaled:\n    def __init__(s, n): s.n = n\n"
        "    def __call__(s, f):\n        s.f = f\n        return s.run\n"
        "    def run(s, x): return s.f(x) * s.n\n@scaled(GIVEN)\ndef use(x): return x + 1", "use(idx)"),
    "a forward from a factory": HEAD
    + "def make(n):\n    def forward(idx): return idx * n\n    return forward\n"
    "class R(BaseRunner):\n    forward = staticmethod(make(GIVEN))\n" + TAIL,
    "a class from a factory": HEAD
    + "def make(n):\n    class R(BaseRunner):\n        @staticmethod\n        def forward(idx): return idx * n\n"
    "    return R\nR = make(GIVEN)\n" + TAIL,
    "an attribute of a function": program("def use(x): return x * use.k\nuse.k = GIVEN", "use(idx)"),
    "defaults that were replaced": program("def use(x, k=0): return x * k\nuse.__defaults__ = (GIVEN,)", "use(idx)"),
    "code that was replaced": program(
        "def use(x): return x\ndef one(x): return x + 1\ndef two(x): return x + 2\n"
        "use.__code__ = (one if GIVEN == 1 else two).__code__", "use(idx)"),
    "an attribute whose name the provider sets too": program(
        "class M: pass\nclass P(EnvironmentProvider):\n"
        "    def build_env_local(self):\n        m = M()\n        m.k = 7\n"
        "        self.k = 8\n        return {'m': m}", "idx * R.k").replace(TAIL, f"R.k = GIVEN\n{TAIL}"),
    "an attribute of a helper's class": program(
        "class H:\n    k = 0\n    @classmethod\n    def use(cls, x): return x * cls.k\nH.k = GIVEN", "H.use(idx)"),
    "a default from a factory": program(
        "@dataclasses.dataclass\nclass C:\n    k: int = dataclasses.field(default_factory=lambda: GIVEN)\nCFG = C()",
        "idx * CFG.k"),
    "an enumeration": program("E = enum.Enum('E', {'A': GIVEN})", "idx * E.A.value"),
    "a class made by type": program("C = type('C', (), {'k': GIVEN})", "idx * C.k"),
    "a module made by hand": program("m = types.ModuleType('m')\nm.k = GIVEN\nsys.modules['m'] = m", "idx * m.k"),
    "a ChainMap": program("m = collections.ChainMap({'k': GIVEN})", "idx * m['k']"),
    "the order of a dict": program("m = {'a': 1, 'b': 2} if GIVEN == 1 else {'b': 2, 'a': 1}", "list(m)[0]"),
    "a namespace's subclass": program("class N(argparse.Namespace): pass\nARGS = N(k=GIVEN)", "idx * ARGS.k"),
    "an attribute by a name made at run time": program("", "getattr(R, 'k' + '1') * idx").replace(
        TAIL, f"R.k1 = GIVEN\n{TAIL}"),
    "an attribute of the provider": _by_hand("self.k", after="p.k = n"),
    "a function that the provider keeps": _by_hand(
        "self.f()", made="P({}, lambda: n)",
        init="def __init__(self, c, f):\n        super().__init__(c)\n        self.f = f\n"),
    "a method replaced on the provider": _by_hand("1", after="p.build_env_local = lambda: {'k': n}"),
    "another method of a helper's class": program(
        "import helper\nif GIVEN == 2: helper.H.f = lambda self, x: x + 2", "helper.H().f(idx)"),
    "another function in the standard library": program(
        "import math\nif GIVEN == 2: math.sqrt = lambda x: 42.0", "math.sqrt(idx)"),
    "a method put into an installed class": program("Path.k = lambda self, k=GIVEN: k", "Path('a').k()"),
    "and into one that is named by way of its module": program(
        "string.Formatter.k = lambda self, k=GIVEN: k", "string.Formatter().k()"),
    "a helper's variable set from outside": program("import helper\nhelper.K = GIVEN", "helper.f(idx)"),
    "an attribute of a base": program("class B:\n    S = GIVEN\nclass C(B): pass", "C.S"),
    "a default of forward": program("", "s").replace("forward(idx)", "forward(idx, s=GIVEN)"),
    "a default of a function": program("def f(s=GIVEN): return s", "f()"),
    "a default of a lambda": program("f = lambda s=GIVEN: s", "f()"),
    "an object with slots": program(
        "class C:\n    __slots__ = ('s',)\n    def __init__(self, s): self.s = s\nCFG = C(GIVEN)", "CFG.s"),
    "a partial function": program("f = functools.partial(max, GIVEN)", "f(0)"),
    "a time": program("import datetime\nS = datetime.timedelta(GIVEN)", "S"),
    "a pattern": program("import re\nS = re.compile(str(GIVEN))", "S.pattern"),
    "a member of an enumeration": program(
        "class E(enum.Enum):\n    A = 1\n    B = 2\nS = E(GIVEN)", "S.value"),
}  # fmt: skip

_DUP = "    f = staticmethod(lambda: VALUE)\n    f = staticmethod(lambda: OTHER)"
_BY_KEYWORD = "def g(a, b): return a - b\ndef f(x): return g(VALUE)"
_TRY = "def bad():\n    raise ValueError\ndef f():\n    n = 0\n    try:\n"
_TRY += "        VALUE\n    except ValueError:\n        n += 5\n"
# By what is edited: the program, then what stands for VALUE before and after.
EDITED = {
    "a function among all names": (program("def f1(x): return x + VALUE", "globals()['f1'](idx)"), "1", "2"),
    "a function among a class's names": (
        program("class H:\n    def f1(x): return x + VALUE\nT = {n: getattr(H, n) for n in dir(H) if n[0] == 'f'}",
                "T['f1'](idx)"), "1", "2"),
    "a function among the module's names": (
        program("def f1(x): return x + VALUE\nT = dict(locals())", "T['f1'](idx)"), "1", "2"),
    "a subclass that is looked for": (
        program("class B: pass\nclass C(B):\n    k = VALUE", "idx * B.__subclasses__()[0].k"), "1", "2"),
    "a table that its function fills": (
        program("T = {}\ndef fill(k): T['k'] = k\nfill(VALUE)", "idx * T['k']"), "1", "2"),
    "a name bound again": (
        program("def f(x): return x + 1\ndef g(x): return x + 2\nVALUE", "f(idx)"), "pass", "f = g"),
    "an unpacked name": (program("a, *b = [1, VALUE]", "idx * b[0]"), "1", "2"),
    "the target of a loop": (program("for k in (VALUE,): pass", "idx * k"), "1", "2"),
    "what a match binds": (program("match VALUE:\n    case int(k): pass", "idx * k"), "1", "2"),
    "the branch of a match": (
        program("match VALUE:\n    case 1:\n        def f(x): return x + 1\n"
                "    case _:\n        def f(x): return x + 2",
                "f(idx)"), "1", "2"),
    "what is deleted": (program("k = [1, 2, 3]\ndel k[VALUE]", "k[0]"), "0", "1"),
    "the order of statements": (
        program("k = 1\nVALUE", "idx + k"), "k = k + 1\nk = k * 3", "k = k * 3\nk = k + 1"),
    "the order of methods of one name": (
        program("class C:\n" + _DUP.replace("OTHER", "3 - VALUE"), "C.f()"), "1", "2"),
    "an f-string": (program("k = f'{VALUE!r}'", "k"), "1", "2"),
    "a default of a lambda": (program("f = lambda x, k=VALUE: x * k", "f(idx)"), "1", "2"),
    "one and True": (program("k = VALUE", "str(k)"), "1", "True"),
    "a mangled name": (
        program("class C:\n    def __f(self): return VALUE\n    def g(self): return self.__f()", "C().g()"), "1", "2"),
    "a property": (program("class C:\n    @property\n    def k(self): return VALUE", "C().k"), "1", "2"),
    "one of two cases called _": (
        program("@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return VALUE\n"
                "@f.register\ndef _(x: str): return 9", "f(idx)"), "1", "2"),
    "an overloaded function": (
        program("@typing.overload\ndef f(x: int): ...\n@typing.overload\ndef f(x: str): ...\ndef f(x): return VALUE",
                "f(idx)"), "1", "2"),
    "a cached function": (program("@functools.lru_cache\ndef f(x): return x * VALUE", "f(idx)"), "1", "2"),
    "a module's __getattr__": (
        program("def __getattr__(n): return VALUE", "sys.modules[R.__module__].foo"), "1", "2"),
    "names of keywords": (program(_BY_KEYWORD, "f(idx)"), "a=x, b=1", "b=x, a=1"),
    "what a try covers": (
        program(_TRY + "    return n", "f()"), "bad()\n        n += 1", "bad()\n    except KeyError:\n        n += 1"),
    "the order of bases": (
        program("class A:\n    k = 1\nclass B:\n    k = 2\nclass C(VALUE): pass", "C.k"), "A, B", "B, A"),
    "a metaclass": (
        program("class M(type):\n    def __call__(cls): return VALUE\nclass A(metaclass=M): pass", "A()"), "1", "2"),
    "an async function": (
        program("import asyncio\nasync def f(): return VALUE", "asyncio.run(f())"), "1", "2"),
    "a nested class": (
        program("def f():\n    class A:\n        k = VALUE\n    return A.k", "f()"), "1", "2"),
    "a module that forward imports": (program("", "__import__('helper').f(idx)"), "1", "2"),
    "a module imported in a function": (
        program("def f():\n    from helper import f\n    return f(1)", "f()"), "1", "2"),
    "a function in a partial in a table": (
        program("def f(k): return k * VALUE\nT = {'a': [functools.partial(f, 1)]}", "T['a'][0]()"), "1", "2"),
}  # fmt: skip

# Edits after which a run goes on.
ACCEPTED = {
    "a comment": (program("k = 1  # VALUE", "k"), "1", "2"),
    "another layout": (program("k = [1VALUE]", "k"), "", ",\n  "),
    "a comprehension on two lines": (
        program("def f(xs):\n    ys = [VALUEx + 1 for x in xs]\n    return ys", "f([1])"), "", "\n        "),
    "a condition on two lines": (
        program("def f(a, b):\n    while (aVALUEand b):\n        a -= 1\n    return a", "f(2, 3)"), " ", "\n        "),
    "an unrelated function": (program("def g(): return VALUE", "1"), "1", "2"),
    "an unrelated class": (program("class G:\n    k = VALUE", "1"), "1", "2"),
    "a number written otherwise": (program("k = VALUE", "k"), "1000", "1_000"),
    "a text in two parts": (program("k = VALUE", "k"), "'ab'", "'a' 'b'"),
    "a docstring": (program("def f(x):\n    VALUEreturn x", "f(idx)"), "", "'''text'''; "),
    "an import for type checkers": (
        program("if typing.TYPE_CHECKING:\n    import VALUE", "1"), "json", "csv"),
    "a variable that nothing uses": (program("z = VALUE", "1"), "1", "2"),
    "the order of functions": (
        program("VALUE", "a() + b()"),
        "def a(): return 1\ndef b(): return 2", "def b(): return 2\ndef a(): return 1"),
    "the program's own lines": (program("if __name__ == '__main__':\n    print(VALUE)", "1"), "1", "2"),
    "the docstring of the module": (program("def f(): return __doc__\n'VALUE'", "1"), "1", "2"),
}  # fmt: skip

# By what differs: two values of the config, and what stands before them.
_PAIR = "collections.OrderedDict"
CONFIGS = {
    "the order of a dict": ("{'yes': 1, 'no': 2}", "{'no': 2, 'yes': 1}"),
    "the order of an OrderedDict": (f"{_PAIR}(yes=1, no=2)", f"{_PAIR}(no=2, yes=1)"),
    "the order of an inner dict": ("{'l': {'yes': 1, 'no': 2}}", "{'l': {'no': 2, 'yes': 1}}"),
    "names of a structured type": (
        "np.array([(1, 2)], dtype=[('a', 'i4'), ('b', 'i4')])", "np.array([(1, 2)], dtype=[('b', 'i4'), ('a', 'i4')])"),
    "kinds of a structured type": (
        "np.array([(1,)], dtype=[('a', 'i4')])", "np.array([(1,)], dtype='i4').view([('a', 'f4')])"),
    "a matrix and an array": ("np.matrix([[1, 2], [3, 4]])", "np.array([[1, 2], [3, 4]])"),
    "a recarray and an array": (
        "np.rec.array([(1,)], dtype=[('a', 'i4')])", "np.array([(1,)], dtype=[('a', 'i4')])"),
    "the order of categories": (
        "pd.Series(pd.Categorical(['a', 'b'], ['a', 'b']))", "pd.Series(pd.Categorical(['a', 'b'], ['b', 'a']))"),
    "ordered categories": (
        "pd.Series(pd.Categorical(['a'], ['a'], ordered=True))", "pd.Series(pd.Categorical(['a'], ['a']))"),
    "names of levels": (
        "pd.MultiIndex.from_tuples([(1, 2)], names=['a', 'b'])",
        "pd.MultiIndex.from_tuples([(1, 2)], names=['b', 'a'])"),
    "the name of columns": (
        "pd.DataFrame({'a': [1]}).rename_axis(columns='u')", "pd.DataFrame({'a': [1]}).rename_axis(columns='v')"),
    "a table's attrs": (
        "(lambda d: d.attrs.update(k=1) or d)(pd.DataFrame())", "(lambda d: d.attrs.update(k=2) or d)(pd.DataFrame())"),
    "keys 1 and '1'": ("{1: 'a', '1': 'b'}", "{1: 'c', '1': 'b'}"),
    "inner keys 1 and '1'": ("{'k': {1: 'a', '1': 'b'}}", "{'k': {1: 'c', '1': 'b'}}"),
    "a path and a text": ("Path('a')", "'a'"),
    "bytes and a bytearray": ("b'a'", "bytearray(b'a')"),
    "a set and a frozenset": ("{1}", "frozenset({1})"),
    "a list and a tuple": ("[1]", "(1,)"),
    "an attribute of a function": ("(setattr(fun, 'k', 1), fun)[1]", "(setattr(fun, 'k', 2), fun)[1]"),
    "members of flags": ("Fl.A | Fl.B", "Fl.A"),
    "an itemgetter": ("operator.itemgetter(0)", "operator.itemgetter(1)"),
    "generators of random numbers": ("np.random.default_rng(1)", "np.random.default_rng(2)"),
    "ranges": ("range(3)", "range(4)"),
    "slices": ("slice(1)", "slice(2)"),
    "namedtuples": ("NT(1)", "NT(2)"),
    "namespaces": ("SimpleNamespace(a=1)", "SimpleNamespace(a=2)"),
    "an object that pickles to nothing": ("G(1)", "G(2)"),
    "an object that pickles to another": ("H(1)", "H(2)"),
    "an object with a lock": ("L(1)", "L(2)"),
    "the format of a memoryview": ("memoryview(b'abcd')", "memoryview(b'abcd').cast('i')"),
    "a decimal's zeros": ("__import__('decimal').Decimal('1.0')", "__import__('decimal').Decimal('1.00')"),
    "a text's form": ("'\\u00e9'", "'e\\u0301'"),
}  # fmt: skip
MEANT = """
def fun(): pass
class Fl(enum.Flag):
    A = 1
    B = 2
NT = collections.namedtuple("NT", "a")
class G:
    def __init__(self, a): self.a = a
    def __getstate__(self): return {}
class H:
    def __init__(self, a): self.a = a
    def __reduce__(self): return (H, (1,))
class L:
    def __init__(self, a):
        self.a = a
        self.lock = threading.Lock()
"""
SAME = {
    "a float's text": ("0.1", "0.1000000000000000055511151231257827"),
    "a set's order": ("{1, 2, 3}", "{3, 2, 1}"),
}

# Values of the user's own kinds, whose methods are edited in a module that only the main program imports.
KINDS = """
import enum
import numpy as np
class Name(str):
    def render(self): return self + "VALUE"
class Mode(str, enum.Enum):
    FAST = "fast"
    def factor(self): return VALUE
class Level(enum.IntEnum):
    A = 1
    def factor(self): return VALUE
class L(list):
    def total(self): return sum(self) * VALUE
class D(dict):
    def total(self): return sum(self.values()) * VALUE
class F(float):
    def times(self): return self * VALUE
class Arr(np.ndarray):
    def total(self): return float(self.sum() * VALUE)
"""
OF_KINDS = ["Name('a')", "Mode.FAST", "Level.A", "L([1])", "D(a=1)", "F(1.5)"]
OF_KINDS += ["np.arange(3).view(own.Arr)"]

# The same, of which 1 becomes 2: what stands before the runner, and what its `forward` returns.
BECOMES = {
    "partialmethod": (
        "class A:\n    def f(self, k): return k*VALUE\n    g = functools.partialmethod(f, 3)",
        "A().g()"),
    "singledispatchmethod": (
        ("class A:\n    @functools.singledispatchmethod\n    def f(self, x): return 0\n    @f.register\n"
        "    def _(self, x: int): return VALUE"),
        "A().f(1)"),
    "descriptor": ("class D:\n    def __get__(self, o, t): return VALUE\nclass A:\n    k = D()", "A().k"),
    "class decorator": (("def deco(k):\n    def w(c):\n        c.k = k\n        return c\n    return w\n@deco(VALUE)\n"
        "class A: pass"), "A.k"),
    "init_subclass": (
        "class B:\n    def __init_subclass__(cls, k, **kw): cls.k = k\nclass A(B, k=VALUE): pass",
        "A.k"),
    "namedtuple default": ("class E(typing.NamedTuple):\n    a: int = VALUE", "E().a"),
    "dataclass default": ("@dataclasses.dataclass\nclass E:\n    a: int = VALUE", "E().a"),
    "dataclass factory": (
        "@dataclasses.dataclass\nclass E:\n    a: list = dataclasses.field(default_factory=lambda: [VALUE])",
        "E().a"),
    "slots dataclass": ("@dataclasses.dataclass(slots=True)\nclass E:\n    a: int\nX = E(VALUE)", "X.a"),
    "generator": ("def g():\n    yield VALUE", "list(g())"),
    "genexp": ("def g(): return sum(x*VALUE for x in range(3))", "g()"),
    "kwonly default": ("def g(*, a=VALUE): return a", "g()"),
    "bound method kept": (
        "class A:\n    def __init__(s, k): s.k = k\n    def f(s): return s.k\nF = A(VALUE).f",
        "F()"),
    "callable object": (
        "class A:\n    def __init__(s, k): s.k = k\n    def __call__(s): return s.k\nF = A(VALUE)",
        "F()"),
    "vectorize": ("F = np.vectorize(lambda x: x+VALUE)", "int(F(1))"),
    "methodcaller": ("F = operator.methodcaller('count', str(VALUE))", "F('1')"),
    "walrus": ("if (k := VALUE): pass", "k"),
    "try import": ("try:\n    import nothing_here\nexcept ImportError:\n    def f(): return VALUE", "f()"),
    "context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef c():\n    yield VALUE",
        "c().__enter__()"),
    "finally": (
        "def f():\n    x = 0\n    try:\n        x = 1\n    finally:\n        x += VALUE\n    return x",
        "f()"),
    "metaclass prop": (
        "class M(type):\n    @property\n    def k(cls): return VALUE\nclass A(metaclass=M): pass",
        "A.k"),
    "nested partial": ("F = functools.partial(functools.partial(lambda a, b: a+b, VALUE), 1)", "F()"),
    "frozenset": ("F = frozenset({VALUE, 'a'})", "sorted(map(str, F))"),
    "wraps": (("def d(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a) + VALUE\n    return w\n@d\n"
        "def g(): return 1"), "g()"),
    "wrapped inner": (("def d(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a)\n    return w\n@d\n"
        "def g(): return VALUE"), "g()"),
    "mixed mro": ("class A:\n    def f(s): return VALUE\nclass B(A): pass\nclass C(B): pass", "C().f()"),
    "super": ("class A:\n    def f(s): return VALUE\nclass B(A):\n    def f(s): return super().f()", "B().f()"),
    "chained table": ("T = {'a': {'b': [lambda: VALUE]}}", "T['a']['b'][0]()"),
    "object ref": ("class A: pass\na = A()\na.b = A()\na.b.c = VALUE", "a.b.c"),
    "cycle": ("class A: pass\na = A()\na.me = a\na.k = VALUE", "a.me.k"),
    "weak": ("import weakref\nclass A: pass\na = A()\na.k = VALUE\nW = weakref.ref(a)", "a.k + (W() is None)"),
    "default read in other": ("class Cfg:\n    size = VALUE\n    def __init__(self): self.n = self.size", "Cfg().n"),
    "cache and value": (
        ("T = {'k': VALUE}\nC = {}\ndef f(i):\n    C[i] = T['k']\n    out = {}\n    out['x'] = T['k']\n"
        "    return C[i]"),
        "f(idx)"),
    "local store of global item": (
        "T = [VALUE]\ndef f(i):\n    x = T\n    y = list(x)\n    y[0] += 1\n    return y",
        "f(idx)"),
    "self local object": (
        ("class S:\n    def __init__(s, k): s.k = k\nCFG = S(VALUE)\ndef f():\n    o = S(1)\n    o.k = 7\n"
        "    return CFG.k"),
        "f()"),
}  # fmt: skip

# What items change as they run, or what says nothing of the result.
CACHES = {
    "global counter": ("N = 0\ndef f():\n    global N\n    N += 1\n    return N", "f()"),
    "list append": ("L = []\ndef f(i):\n    L.append(i)\n    return L", "f(idx)"),
    "cls cache": (("class A:\n    c = {}\n    @classmethod\n    def f(cls, i):\n        cls.c[i] = i\n"
        "        return cls.c[i]"), "A.f(idx)"),
    "obj cache": (("class A:\n    def __init__(s): s.c = {}\n    def f(s, i):\n        s.c[i] = i\n        return i\n"
        "a = A()"), "a.f(idx)"),
    "closure cache": (
        "def make():\n    c = {}\n    def f(i):\n        c[i] = i\n        return i\n    return f\nf = make()",
        "f(idx)"),
    "nonlocal": (("def make():\n    n = 0\n    def f():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return f\nf = make()"), "f()"),
    "defaultdict append": (
        "D = collections.defaultdict(list)\ndef f(i):\n    D[i].append(1)\n    return i",
        "f(idx)"),
    "memo lru": ("@functools.lru_cache\ndef f(i): return i", "f(idx)"),
    "cached property": ("class A:\n    @functools.cached_property\n    def p(s): return 3\na = A()", "a.p"),
    "lazy global": (
        "M = None\ndef get():\n    global M\n    if M is None: M = {'big': 1}\n    return M",
        "get()['big']"),
    "lazy attr": (
        "class A:\n    m = None\n    def get(s):\n        if s.m is None: s.m = 5\n        return s.m\na = A()",
        "a.get()"),
    "lazy class attr": (
        ("class A:\n    m = None\n    @classmethod\n    def get(cls):\n        if cls.m is None: cls.m = 5\n"
        "        return cls.m"),
        "A.get()"),
    "lazy class attr by name": (
        ("class A:\n    m = None\n    @staticmethod\n    def get():\n        if A.m is None: A.m = 5\n"
        "        return A.m"),
        "A.get()"),
    "object setattr": (
        "class A:\n    def get(s):\n        object.__setattr__(s, 'm', 5)\n        return 1\na = A()",
        "a.get()"),
    "dict attr": ("class A:\n    def get(s):\n        s.__dict__['m'] = 5\n        return 1\na = A()", "a.get()"),
    "update": ("C = {}\ndef f(i):\n    C.update({i: 1})\n    return i", "f(idx)"),
    "aug item": ("C = collections.Counter()\ndef f(i):\n    C[i] += 1\n    return i", "f(idx)"),
    "nested item": ("C = {'a': {}}\ndef f(i):\n    C['a'][i] = 1\n    return i", "f(idx)"),
    "via local": ("C = {}\ndef f(i):\n    c = C\n    c[i] = 1\n    return i", "f(idx)"),
    "del item": ("C = {0: 1}\ndef f(i):\n    C.pop(i, None)\n    return i", "f(idx)"),
    "function attr": ("def f(i):\n    f.n = getattr(f, 'n', 0) + 1\n    return i", "f(idx)"),
    "function attr dict": ("def f(i):\n    f.cache[i] = i\n    return i\nf.cache = {}", "f(idx)"),
    "argument cache": ("def f(i, c={}):\n    c[i] = i\n    return i", "f(idx)"),
    "random": ("import random\nG = random.Random(3)", "G.random()"),
    "rng": ("G = np.random.default_rng(3)", "G.random()"),
    "iterator": ("import itertools\nG = itertools.count()", "next(G)"),
    "lazy import": ("def f():\n    import helper\n    return helper.f(1)", "f()"),
    "warned": ("SEEN = set()\ndef f(i):\n    if i not in SEEN:\n        SEEN.add(i)\n    return i", "f(idx)"),
    "file": (
        "HERE = os.path.dirname(__file__)\ndef f(): return os.path.basename(__file__) + HERE[:1] + __name__[:0]",
        "f()"),
    "slots obj": (("class A:\n    __slots__ = ('n',)\n    def __init__(s): s.n = 0\n    def f(s):\n        s.n += 1\n"
        "        return s.n\na = A()"), "a.f()"),
    "property cache": (("class A:\n    def __init__(s): s._p = None\n    @property\n    def p(s):\n"
        "        if s._p is None: s._p = 3\n        return s._p\na = A()"), "a.p"),
    "inner object": (("class I:\n    def __init__(s): s.n = 0\n    def inc(s): s.n += 1\nclass A:\n"
        "    def __init__(s): s.i = I()\n    def f(s):\n        s.i.inc()\n        return 1\na = A()"), "a.f()"),
    "inner attr set": (("class I: n = 0\nclass A:\n    def __init__(s): s.i = I()\n    def f(s):\n        s.i.n = 4\n"
        "        return 1\na = A()"), "a.f()"),
    "pandas": ("DF = pd.DataFrame({'a': [1, 2]})", "int(DF['a'].sum()) + len(DF.index) + int(DF.loc[0, 'a'])"),
    "compiled re": ("import re\nX = re.compile('a')", "bool(X.match('a'))"),
    "thread local": ("T = threading.local()\ndef f():\n    T.x = 1\n    return 1", "f()"),
    "tqdm": ("import tqdm\ndef f():\n    for i in tqdm.tqdm(range(2), disable=True): pass\n    return 1", "f()"),
    "abc register": (("class A(abc.ABC):\n    @abc.abstractmethod\n    def f(s): ...\nclass B(A):\n"
        "    def f(s): return isinstance(s, A)"), "B().f()"),
    "typing generic": (
        "T = typing.TypeVar('T')\nclass A(typing.Generic[T]):\n    pass\ndef f(): return str(A[int])[:1]",
        "f()"),
    "orderedset move": (
        "C = collections.OrderedDict(a=1)\ndef f(i):\n    C.move_to_end('a')\n    return 1",
        "f(idx)"),
    "class cache": ("class A:\n    c = {}", "A.c.setdefault(idx, idx)"),
    "class counter": ("class A:\n    n = 0\ndef add(cls):\n    cls.n += 1", "(setattr(A, 'n', 1), add(A))"),
    "lock": ("L = threading.Lock()", "L.acquire(False)"),
    "notes of an error": ("E = ValueError(1)\ndef f(i):\n    vars(E)['__notes__'] = [i]\n    return str(E)", "f(idx)"),
    "logger": ("import logging\nL = logging.getLogger('mine')", "L.info('x')"),
    "deque rotate": ("C = collections.deque([1,2])\ndef f(i):\n    C.rotate(1)\n    return 1", "f(idx)"),
}  # fmt: skip
