"""Results that pickle and JSON can hold, and results that they cannot."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

# No np.bytes_ that ends in a zero: numpy's own pickling leaves that out.
_LEAVES = (
    "None", "...", "True", "0", "-1", "10 ** 700", "1.5", "-0.0", "float('nan')", "float('inf')", "5e-324", "1j",
    "''", "'\\x00'", "'\\ud800'", "'\\u2028'", "'__type__'", "b''", "b'\\xff'", "bytearray(b'x')",
    "memoryview(b'x')", "range(3)", "slice(1, 2)", "{1, 'a'}", "frozenset({1})", "Path('a/b')",
    "decimal.Decimal('1.10')", "fractions.Fraction(1, 3)", "datetime.date(2020, 1, 2)",
    "datetime.timedelta(1)", "uuid.UUID(int=5)", "Colour.RED", "Level.LOW", "Point(1, 2)", "Plain(3)",
    "collections.OrderedDict(b=1, a=2)", "collections.Counter('aab')", "collections.defaultdict(list, a=[1])",
    "np.bytes_(b'')", "np.bytes_(b'a\\x00b')", "np.str_('')", "np.float16(1.5)", "np.longdouble(1)",
    "np.complex64(1j)", "np.int8(-1)", "np.bool_(True)", "np.datetime64('2020-01-02')", "np.datetime64('NaT')",
    "np.timedelta64(3, 's')", "np.void(b'abc')", "np.array(3)", "np.array([])", "np.zeros((0, 3))",
    "np.arange(6).reshape(2, 3).T", "np.arange(3, dtype='>i4')", "np.array(['a', 'bc'])",
    "np.array([b'', b'a\\x00'])", "np.array([None, {1}], dtype=object)", "np.zeros(2, dtype='i4,f8')",
    "np.ma.masked_array([1, 2], [0, 1])", "np.array(['2020-01-02'], 'M8[D]')", "np.zeros(30000)",
    "pd.DataFrame({'a': [1, None]})", "pd.Series(['x'])", "pd.Timestamp(0)", "pd.NA",
    "int", "len", "sys", "Colour", "ValueError('x')", "NotImplemented", "object", "re.compile('a+')",
)  # fmt: skip
_STRAY = (
    "(lambda: 1)",
    "(i for i in ())",
    "open(__file__)",
    "threading.Lock()",
    "iter([1])",
    "Unpicklable()",
)

_USES = """
import collections, dataclasses, datetime, decimal, enum, fractions, re, uuid
class Colour(enum.Enum): RED = 1
class Level(enum.IntEnum): LOW = 1
Point = collections.namedtuple("Point", "x y")
@dataclasses.dataclass
class Plain: x: int
class Unpicklable:
    def __reduce__(self): raise LookupError("this cannot travel")
    def __repr__(self): return "Unpicklable()"
"""


def draw_value(rng: Random, depth: int = 0) -> str:
    """Draw an expression: a leaf, or a container of others."""
    if depth > 3 or rng.random() < 0.55:
        return rng.choice(_LEAVES)
    inside = [draw_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    kind = rng.randrange(4)
    if kind == 0:
        return f"[{', '.join(inside)}]"
    if kind == 1:
        return f"({''.join(f'{value}, ' for value in inside)})"
    keys = ("'a'", "1", "'1'", "True", "None", "(1, 2)", "'__type__'", "b'k'", "1.0")
    return f"{{{', '.join(f'{rng.choice(keys)}: {value}' for value in inside)}}}"


def draw(rng: Random) -> Case:
    """Draw some results and whether they go through memory or through a folder, twice."""
    stray = rng.random() < 0.15
    values = [draw_value(rng) for _ in range(1 if rng.random() < 0.5 else 6)]
    if stray:
        values.insert(rng.randrange(len(values) + 1), rng.choice(_STRAY))
    made = f"def f(i): return [{', '.join(values)}][i]\nplain = [f(i) for i in range({len(values)})]\n"
    if rng.random() < 0.5:
        text = f"{made}right = plain\nanswer = parallel_map(f, range({len(values)}))\n"
        return Case(f"results: parallel_map of {values[:2]}", text, _USES, own=("LookupError",), differ=True)
    text = f"""{made}right = [plain, plain]
answer = [list(R(P({{}}), output_dir="out", progress=False)(range({len(values)}))) for _ in range(2)]
"""
    # what JSON cannot hold is refused with and without workers; what pickle cannot, only with them
    return Case(f"results: a run folder of {values[:2]}", text, _USES, differ=stray)


FIXED = (
    Case(
        "results: an empty numpy bytes in a run folder",
        """
def f(i): return [np.bytes_(b""), np.bytes_(b"a"), np.str_("")][i]
right = [[f(i) for i in range(3)]] * 2
answer = [list(R(P({}), output_dir="out", progress=False)(range(3))) for _ in range(2)]
""",
        uses=_USES,
    ),
    Case(
        "results: an open file",
        """
open("text", "w").write("one\\ntwo\\n")
def f(i):
    file = open("text")
    file.readline()
    return file
answer = [(type(file).__name__, file.readline()) for file in parallel_map(f, range(2))]
right = [("TextIOWrapper", "two\\n")] * 2
""",
        uses=_USES,
        differ=True,
    ),
    Case(
        "results: a list deeper than any stack",
        """
def f(i):
    made = []
    for _ in range(100_000): made = [made]
    return made
answer = len(parallel_map(f, range(2)))
""",
        uses=_USES,
        differ=True,
        own=("RecursionError",),
    ),
)
