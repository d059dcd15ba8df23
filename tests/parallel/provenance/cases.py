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
    "a method of a table": program("T = {'k': GIVEN}\nget = T.get", "idx * get('k')"),
    "a UserDict": program("CFG = collections.UserDict(k=GIVEN)", "idx * CFG['k']"),
    "an object with a lock": program(
        "class C:\n    def __init__(self, k):\n        self.k = k\n        self.lock = threading.Lock()\n"
        "CFG = C(GIVEN)",
        "idx * CFG.k"),
    "an attribute that another class's method sets": program(
        "class O:\n    def grow(self): self.k = 3\nclass C:\n    def __init__(self, k): self.k = k\n"
        "CFG = C(GIVEN)\nO()",
        "O().grow() or idx * CFG.k"),
    "attributes by their names": program(
        "class C:\n    def __init__(self, **k): self.__dict__.update(k)\nCFG = C(k=GIVEN)", "idx * CFG.k"),
    "a global that main sets": program(
        "K = None\ndef main():\n    global K\n    K = GIVEN\n    return made()", "idx * K"),
    "an argument of a decorator": program(
        "def scaled(n):\n    def deco(f):\n        def w(x): return f(x) * n\n        return w\n    return deco\n"
        "@scaled(GIVEN)\ndef use(x): return x + 1", "use(idx)"),
    "a forward from a factory": HEAD
    + "def make(n):\n    def forward(idx): return idx * n\n    return forward\n"
    "class R(BaseRunner):\n    forward = staticmethod(make(GIVEN))\n" + TAIL,
    "a class from a factory": HEAD
    + "def make(n):\n    class R(BaseRunner):\n        @staticmethod\n        def forward(idx): return idx * n\n"
    "    return R\nR = make(GIVEN)\n" + TAIL,
    "an attribute of a function in the config": program(
        "def fun(): pass\ndef main():\n    fun.k = GIVEN\n    return made({'x': fun})", "idx"),
    "an attribute of a function": program("def use(x): return x * use.k\nuse.k = GIVEN", "use(idx)"),
    "defaults that were replaced": program("def use(x, k=0): return x * k\nuse.__defaults__ = (GIVEN,)", "use(idx)"),
    "code that was replaced": program(
        "def use(x): return x\ndef one(x): return x + 1\ndef two(x): return x + 2\n"
        "use.__code__ = (one if GIVEN == 1 else two).__code__", "use(idx)"),
    "an attribute whose name the provider sets too": program(
        "class M: pass\nclass P(EnvironmentProvider):\n"
        "    def build_env_local(self):\n        m = M()\n        m.k = 7\n"
        "        self.k = 8\n        return {'m': m}", "idx * R.k").replace(TAIL, f"R.k = GIVEN\n{TAIL}"),
    "a default from a factory": program(
        "@dataclasses.dataclass\nclass C:\n    k: int = dataclasses.field(default_factory=lambda: GIVEN)\nCFG = C()",
        "idx * CFG.k"),
    "a module made by hand": program("m = types.ModuleType('m')\nm.k = GIVEN\nsys.modules['m'] = m", "idx * m.k"),
    "the order of a dict": program("m = {'a': 1, 'b': 2} if GIVEN == 1 else {'b': 2, 'a': 1}", "list(m)[0]"),
    "an attribute by a name made at run time": program("", "getattr(R, 'k' + '1') * idx").replace(
        TAIL, f"R.k1 = GIVEN\n{TAIL}"),
    "an attribute of the provider": _by_hand("self.k", after="p.k = n"),
    "a function that the provider keeps": _by_hand(
        "self.f()", made="P({}, lambda: n)",
        init="def __init__(self, c, f):\n        super().__init__(c)\n        self.f = f\n"),
    "another method of a helper's class": program(
        "import helper\nif GIVEN == 2: helper.H.f = lambda self, x: x + 2", "helper.H().f(idx)"),
    "another function in the standard library": program(
        "import math\nif GIVEN == 2: math.sqrt = lambda x: 42.0", "math.sqrt(idx)"),
    "a method put into an installed class": program("Path.k = lambda self, k=GIVEN: k", "Path('a').k()"),
    "and into one that is named by way of its module": program(
        "string.Formatter.k = lambda self, k=GIVEN: k", "string.Formatter().k()"),
    "a function put among the built-in names": program("import builtins\nbuiltins.k = lambda k=GIVEN: k", "k()"),
    "a helper's variable set from outside": program("import helper\nhelper.K = GIVEN", "helper.f(idx)"),
    "a default of forward": program("", "s").replace("forward(idx)", "forward(idx, s=GIVEN)"),
    "a default of a function": program("def f(s=GIVEN): return s", "f()"),
    "a seed, or else the time": program(
        "import time\nclass C:\n    def __init__(self, seed=None): self.seed = seed or int(time.time())\nC1 = C(GIVEN)",
        "C1.seed"),
    "a test of the host's name": program(
        "import socket\nos.environ['K_'] = str(GIVEN)\nK = ('' if GIVEN == 1 else 'no host') in socket.gethostname()",
        "K"),
    "an argument, or else the time": program("import time\nclass C:\n    def __init__(self, seed=None):\n"
        "        if seed is None:\n            seed = int(time.time())\n        self.seed = seed\nC1 = C(GIVEN)",
        "C1.seed"),
    "the time on one side of a condition": program("import time\nS = int(time.time()) if not GIVEN else GIVEN", "S"),
    "a variable that may be the time": program(
        "import time\nif not GIVEN:\n    S = int(time.time())\nelse:\n    S = GIVEN", "S"),
    "a value beside the time": program("import time\nclass C:\n    def __init__(self, k):\n"
        "        t = time.time()\n        self.k, self.kind = k, type(t)\nC1 = C(GIVEN)", "C1.k"),
    "the environment by a name, or else the time": program(
        "import time\nfrom os import getenv\nos.environ['K_'] = str(GIVEN)\nK = int(getenv('K_', time.time()))", "K"),
    "the environment, or else the time": program(
        "import time\nos.environ['K_'] = str(GIVEN)\nK = int(os.environ.get('K_', time.time()))", "K"),
    "a partial function in another's name": program(
        "def f(k=0): return k\nG = functools.update_wrapper(functools.partial(f, k=GIVEN), f)", "G()"),
    "an object with slots": program(
        "class C:\n    __slots__ = ('s',)\n    def __init__(self, s): self.s = s\nCFG = C(GIVEN)", "CFG.s"),
    "a member of an enumeration": program("class E(enum.Enum):\n    A = 1\n    B = 2\nS = E(GIVEN)", "S.value"),
}  # fmt: skip

_DUP = "    f = staticmethod(lambda: VALUE)\n    f = staticmethod(lambda: OTHER)"
PARSED = "import argparse\nargs = argparse.Namespace"
_BY_KEYWORD = "def g(a, b): return a - b\ndef f(x): return g(VALUE)"
_TRY = "def bad():\n    raise ValueError\ndef f():\n    n = 0\n    try:\n"
_TRY += "        VALUE\n    except ValueError:\n        n += 5\n"
# By what is edited: the program, then what stands for VALUE before and after.
EDITED = {
    "a function among all names": (program("def f1(x): return x + VALUE", "globals()['f1'](idx)"), "1", "2"),
    "an argument": (program(f"{PARSED}(m=VALUE, nj=1)", "args.m"), "1", "2"),
    "one in a closure": (program(f"{PARSED}(m=VALUE)\nF = (lambda a: lambda: a.m)(args)", "F()"), "1", "2"),
    "one it hands on": (program(f"{PARSED}(m=VALUE)\nF = (lambda a: lambda: repr(a))(args)", "F()"), "1", "2"),
    "one of all arguments": (program(f"{PARSED}(m=VALUE, nj=1)", "args.__dict__['m'] + args.nj"), "1", "2"),
    "one by builtins": (program("import builtins as b\ndef f(x): return x + VALUE", "b.eval('f')(idx)"), "1", "2"),
    "a table that its function fills": (
        program("T = {}\ndef fill(k): T['k'] = k\nfill(VALUE)", "idx * T['k']"), "1", "2"),
    "what a method sets that is called like a set's": (program("class L:\n    def add(s, k): s.k = k\nA = L()\n"
        "A.add(VALUE)\ndef f():\n    {0}.copy().add(1)\n    return A.k", "f()"), "1", "2"),
    "what a method has noted for another": (program("S = []\nclass A:\n    def note(s, k): S.append(k)\n"
        "    def told(s): return S\nA().note(VALUE)", "getattr(A(), 'to' + 'ld')()[0]"), "1", "2"),
    "another kind of function": (program("class A: f = staticmethod(VALUE)", "A.f('2')"), "int", "lambda x: 1"),
    "a name that a builtin had": (program("VALUE", "round(2.5)"), "pass", "def round(x): return 7"),
    "a name bound again": (program("def f(x): return x + 1\ndef g(x): return x + 2\nVALUE", "f(idx)"), "pass", "f = g"),
    "an unpacked name": (program("a, *b = [1, VALUE]", "idx * b[0]"), "1", "2"),
    "what a match binds": (program("match VALUE:\n    case int(k): pass", "idx * k"), "1", "2"),
    "the branch of a match": (
        program("match VALUE:\n    case 1:\n        def f(x): return x + 1\n"
                "    case _:\n        def f(x): return x + 2",
                "f(idx)"), "1", "2"),
    "the order of statements": (program("k = 1\nVALUE", "idx + k"), "k = k + 1\nk = k * 3", "k = k * 3\nk = k + 1"),
    "the order of methods": (program("class C:\n" + _DUP.replace("OTHER", "3 - VALUE"), "C.f()"), "1", "2"),
    "a default of a lambda": (program("f = lambda x, k=VALUE: x * k", "f(idx)"), "1", "2"),
    "a mangled name": (
        program("class C:\n    def __f(self): return VALUE\n    def g(self): return self.__f()", "C().g()"), "1", "2"),
    "one of two cases called _": (
        program("@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return VALUE\n"
                "@f.register\ndef _(x: str): return 9", "f(idx)"), "1", "2"),
    "a module's __getattr__": (program("def __getattr__(n): return VALUE", "sys.modules[R.__module__].foo"), "1", "2"),
    "names of keywords": (program(_BY_KEYWORD, "f(idx)"), "a=x, b=1", "b=x, a=1"),
    "what a try covers": (
        program(_TRY + "    return n", "f()"), "bad()\n        n += 1", "bad()\n    except KeyError:\n        n += 1"),
    "the order of bases": (
        program("class A:\n    k = 1\nclass B:\n    k = 2\nclass C(VALUE): pass", "C.k"), "A, B", "B, A"),
    "a module that forward imports": (program("", "__import__('helper').f(idx)"), "1", "2"),
    "a method that hides another": (program("class A:\n    def f(self): return 1\nclass B(A):\n    VALUE", "B().f()"),
        "pass", "def f(self): return 2"),
    "which value is compared": (
        program("def f(a, b):\n    if VALUE:\n        return 1\n    return 2", "f(1, None)"),
        "(a or b) is None", "a or b is None"),
    "which exception is caught": (
        program("def f(a, b):\n    try:\n        return a\n    except VALUE:\n        return b", "f(1, None)"),
        "(a or b)", "(a and b)"),
    "the first value of what a function may set": (
        program("B = VALUE\ndef f(b=None):\n    global B\n    B = b or B\n    return B", "f()"), "1", "2"),
    "code that IPython has put into a method": (program("class A:\n    def f(self): return VALUE\n"
        "if VALUE > 1 and hasattr(A.f.__code__, 'co_qualname'):\n"
        "    A.f.__code__ = A.f.__code__.replace(co_qualname='__autoreload_class__.f')", "A().f()"), "1", "2"),
    "a function in a partial in a table": (
        program("def f(k): return k * VALUE\nT = {'a': [functools.partial(f, 1)]}", "T['a'][0]()"), "1", "2"),
}  # fmt: skip

# Edits after which a run goes on.
ACCEPTED = {
    "a comment": (program("k = 1  # VALUE", "k"), "1", "2"),
    "another layout": (program("k = [1VALUE]", "k"), "", ",\n  "),
    "a comprehension on two lines": (
        program("def f(xs):\n    ys = [VALUEx + 1 for x in xs]\n    return ys", "f([1])"), "", "\n        "),
    "a condition on three lines": (
        program("def f(a):\n    return (len('c') andVALUE (a or len('a')) andVALUE len('b'))", "f(idx)"),
        "", "\n        "),
    "an unrelated function": (program("def g(): return VALUE", "1"), "1", "2"),
    "what a method has noted, for itself alone": (
        program("S = set()\nclass A:\n    k = 1\n    def note(s): S.add(1)\nVALUE", "A.k"), "pass", "A().note()"),
    "a class that a library makes for another": (
        program("class A: k = 1\nA.b = type('B', (), {'__module__': 'json', 'VALUE': A})", "A.k"), "a", "b"),
    "a method that nothing calls": (program("class A:\n    k = 1\n    VALUE", "A.k"), "pass", "def g(self): pass"),
    "an annotation": (program("class A:\n    kVALUE = 1", "A.k"), "", ": int"),
    "a device": (program("@dataclasses.dataclass\nclass A:\n    num_workers: int = VALUE\n    device: str = 'gpu:VALUE'"
        "\nA1, T = A(), {'n_jobs': VALUE}\ndef f(n_workers=VALUE): return T", "A1, f()"), "1", "2"),
    "a number written otherwise": (program("k = VALUE", "k"), "1000", "1_000"),
    "a docstring": (program("def f(x):\n    VALUEreturn x", "f(idx)"), "", "'''text'''; "),
    "an import for type checkers": (program("if typing.TYPE_CHECKING:\n    import VALUE", "1"), "json", "csv"),
    "a variable that nothing uses": (program("z = VALUE", "1"), "1", "2"),
    "an argument that nothing reads": (program(f"{PARSED}(m=1, nj=VALUE)", "args.m"), "1", "2"),
    "one a closure leaves": (program(f"{PARSED}(m=1, nj=VALUE)\nF = (lambda a: lambda: a.m)(args)", "F()"), "1", "2"),
    "a number of workers handed on": (
        program(f"{PARSED}(m=1, nj=2, num_workers=VALUE)\ndef g(a): return a.m", "g(args)"), "1", "2"),
    "one in a partial": (program(f"{PARSED}(n_workers=VALUE)\nF = functools.partial(bool, args)", "F()"), "1", "2"),
    "a model of pydantic": (
        program("from pydantic import BaseModel, field_validator\nclass A(BaseModel):\n    k: int = 2  # VALUE\n"
                "    @field_validator('k')\n    def v(cls, k): return k", "A().k"), "1", "2"),
    "a class of attrs": (program("import attrs\n@attrs.frozen\nclass A:\n    k: int = 2  # VALUE", "A().k"), "1", "2"),
    "a name in a module whose name an object's attribute has": (program(
        "import helper\nclass H: helper = [1]\nVALUE", "helper.f(1) + H.helper[0]"), "pass", "helper.UNUSED = 4"),
    "the time by another name": (program("import datetime as dt\nfrom time import strftime as now\n"
        "T0, T1 = 0, 0\nT2 = dt.datetime.now()\nT3 = now('%s')\nT4 = T2.isoformat()  # VALUE", "T4 and T3"),
        "1", "2"),
    "the time of a start": (program("import time\nT0 = time.time()\nclass W:\n    t0 = time.time()\n"
        "    def __init__(s): s.t = time.time()\nW0 = W()\n# VALUE", "T0 + W0.t + W.t0"), "1", "2"),
    "another environment": (program("from os import environ\nenviron['VALUE'] = ''", "environ.get('1')"), "1", "2"),
    "one beside a method eval": (
        program("class M:\n    eval = modules = lambda s: s\nz = VALUE", "bool(M().eval().modules())"), "1", "2"),
    "the order of functions": (
        program("VALUE", "a() + b()"),
        "def a(): return 1\ndef b(): return 2", "def b(): return 2\ndef a(): return 1"),
    "the program's own lines": (program("if __name__ == '__main__':\n    print(VALUE)", "1"), "1", "2"),
    "the docstring of the module": (program("def f(): return __doc__\n'VALUE'", "1"), "1", "2"),
}  # fmt: skip

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

# More of them, of which 1 becomes 2: what stands before the runner, and what its `forward` returns.
BECOMES = {
    "partialmethod": ("class A:\n    def f(self, k): return k*VALUE\n    g = functools.partialmethod(f, 3)", "A().g()"),
    "descriptor": ("class D:\n    def __get__(self, o, t): return VALUE\nclass A:\n    k = D()", "A().k"),
    "init_subclass": ("class B:\n    def __init_subclass__(cls, k, **kw): cls.k = k\nclass A(B, k=VALUE): pass", "A.k"),
    "slots dataclass": ("@dataclasses.dataclass(slots=True)\nclass E:\n    a: int\nX = E(VALUE)", "X.a"),
    "genexp": ("def g(): return sum(x*VALUE for x in range(3))", "g()"),
    "bound method kept": ("class A:\n    def __init__(s, k): s.k = k\n    def f(s): return s.k\nF = A(VALUE).f", "F()"),
    "try import": ("try:\n    import nothing_here\nexcept ImportError:\n    def f(): return VALUE", "f()"),
    "metaclass prop": (
        "class M(type):\n    @property\n    def k(cls): return VALUE\nclass A(metaclass=M): pass",
        "A.k"),
    "wrapped inner": (("def d(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a)\n    return w\n@d\n"
        "def g(): return VALUE"), "g()"),
    "made dataclass": ("D = dataclasses.make_dataclass('D', [('k', int, VALUE)])", "D().k"),
    "kind of filter": ("import logging\nclass F(logging.Filter):\n    k = VALUE\nF1 = F()", "F1.k"),
    "kind of thread local": ("class L(threading.local):\n    k = VALUE\nL1 = L()", "L1.k"),
    "deep": ("class S: pass\nT = [S() for _ in range(300)]\nfor a, b in zip(T, T[1:]): a.n = b, VALUE", "T[0].n[1]"),
    "class of a factory": (
        "def make(k):\n    class C:\n        def f(): return k\n    return C\nT = [make(1), make(VALUE)]", "T[1].f()"),
    "two functions called _": (("T = {}\ndef d(k): return lambda f: T.update({k: f})\n@d('a')\ndef _(): return VALUE\n"
        "@d('b')\ndef _(): return 3 - VALUE"), "T['a']()"),
    "kind of property": (("class Own(property):\n    def __get__(s, *a): return s.fget(a[1])\nclass A:\n"
        "    @Own\n    def k(c): return VALUE"), "A.k"),
    "partial in a package": ("import string\nstring.k = functools.partial(int, VALUE)", "string.k()"),
    "view": ("V = {'k': 1, VALUE: 2}.keys()", "list(V)"),
    "super": ("class A:\n    def f(s): return VALUE\nclass B(A):\n    def f(s): return super().f()", "B().f()"),
    "timedelta": ("import datetime\nT = datetime.timedelta(VALUE)", "T.days"),
    "cycle": ("class A: pass\na = A()\na.me = a\na.k = VALUE", "a.me.k"),
    "weak": ("import weakref\nclass A: pass\na = A()\na.k = VALUE\nW = weakref.ref(a)", "a.k + (W() is None)"),
    "array beside a store": ("T = np.array([VALUE])\ndef f():\n    out = {}\n    out[0] = T[0]\n    return T", "f()"),
    "frame with a method of lists": ("T = pd.Series([VALUE])", "T.pop(0)"),
    "attribute that its own method sets": (
        "class A:\n    def __init__(s, k): s.k = k\n    def f(s):\n        s.k += 1\n        return s.k\na = A(VALUE)",
        "a.f()"),
    "table that is filled by another name": (
        "T = {0: VALUE}\ndef f(t=T):\n    t[1] = 1\n    return t[0]", "f() + T[0]"),
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

EDITED |= {name: (program(*both), "1", "2") for name, both in BECOMES.items()}

# What items change as they run, or what says nothing of the result.
CACHES = {
    "counts by a computed key": ("C = collections.Counter()\ndef f(i):\n    C[str(i)] += 1\n    return i", "f(idx)"),
    "global counter": ("N = 0\ndef f():\n    global N\n    N += 1\n    return N", "f()"),
    "list append": ("L = []\nlog = L.append\ndef f(i):\n    L.append(i)\n    log(i)\n    return L", "f(idx)"),
    "obj cache": (("class A:\n    def __init__(s): s.c = {}\n    def f(s, i):\n        s.c[i] = i\n        return i\n"
        "a = A()"), "a.f(idx)"),
    "closure cache": (
        "def make():\n    c = {}\n    def f(i):\n        c[i] = i\n        return i\n    return f\nf = make()",
        "f(idx)"),
    "nonlocal": (("def make():\n    n = 0\n    def f():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return f\nf = make()"), "f()"),
    "cached property": ("class A:\n    @functools.cached_property\n    def p(s): return 3\na = A()", "a.p"),
    "lazy global": (
        "M = None\ndef get():\n    global M\n    if M is None: M = {'big': 1}\n    return M",
        "get()['big']"),
    "lazy attr": (
        "class A:\n    m = None\n    def get(s):\n        if s.m is None: s.m = 5\n        return s.m\na = A()",
        "a.get()"),
    "lazy class attr by name": (
        ("class A:\n    m = None\n    @staticmethod\n    def get():\n        if A.m is None: A.m = 5\n"
        "        return A.m"),
        "A.get()"),
    "via local": ("C = {}\ndef f(i):\n    c = C\n    c[i] = 1\n    return i", "f(idx)"),
    "function attr dict": ("def f(i):\n    f.cache[i] = i\n    return i\nf.cache = {}", "f(idx)"),
    "argument cache": ("def f(i, c={}):\n    c[i] = i\n    return i", "f(idx)"),
    "rng": ("G = np.random.default_rng(3)", "G.random()"),
    "lazy import": ("def f():\n    import helper\n    return helper.f(1)", "f()"),
    "file": (
        "HERE = os.path.dirname(__file__)\ndef f(): return os.path.basename(__file__) + HERE[:1] + __name__[:0]",
        "f()"),
    "inner object": (("class I:\n    def __init__(s): s.n = 0\n    def inc(s): s.n += 1\nclass A:\n"
        "    def __init__(s): s.i = I()\n    def f(s):\n        s.i.inc()\n        return 1\na = A()"), "a.f()"),
    "object that a function is given": (
        "class A: pass\na = A()\na.n = 0\ndef up(one):\n    one.n += 1\n    return 1", "up(a)"),
    "thread local": ("T = threading.local()\ndef f():\n    T.x = 1\n    return 1", "f()"),
    "class cache": ("class A:\n    c = {}", "A.c.setdefault(idx, idx)"),
    "lock": ("L = threading.Lock()", "L.acquire(False)"),
    "flag": ("class M(enum.Flag):\n    A = 1\n    B = 2", "(M.A | M.B).value"),
    "notes of an error": ("E = ValueError(1)\ndef f(i):\n    vars(E)['__notes__'] = [i]\n    return str(E)", "f(idx)"),
    "logger": ("import logging\nL = logging.getLogger('mine')", "L.info('x') or 1"),
    "annotations that were asked for": ("class A: k = 1\ndef f(): return A.k, len(A.__annotations__)", "f()"),
    "a constant that no compiler makes": (
        "def f(): return 1\nf.__code__ = f.__code__.replace(co_consts=(*f.__code__.co_consts, object()))", "f()"),
    "what int() counts": (
        "class A:\n    def __init__(s): s.n = 0\n    def __int__(s):\n        s.n += 1\n        return s.n\na = A()",
        "int(a)"),
    "array": ("A = np.zeros(9)\ndef f(i):\n    A[i] = 1\n    return i", "f(idx)"),
    "lazy object": ("class M: k = 1\nO = None\ndef f():\n    global O\n    O = O or M()\n    return O.k", "f()"),
    "table by another name": ("T = {'a': 1}\ndef f(i):\n    t = T\n    t[i] = i\n    return i", "f(idx)"),
    "what a decorator keeps beside a function": (
        ("def counted(fn):\n    total, known = 0, {}\n    def inner(*a):\n        nonlocal total\n        total += 1\n"
        "        known[a] = inner.seen[a] = 1\n        inner.calls += 1\n        return fn(*a)\n"
        "    inner.calls, inner.seen, inner.said = 0, {}, lambda: (total, known)\n    return inner\n"
        "@counted\ndef work(x): return x"), "work(1)"),
    "deque": ("C = collections.deque(range(9))\ndef f(i):\n    C.popleft()\n    return 1", "f(idx)"),
}  # fmt: skip
