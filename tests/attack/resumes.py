"""A second run in a folder whose first run had another config: refused, or computed anew; never a stale answer."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

# pairs of values that differ, and which a text of them may not show
_PAIRS = {
    "a table's middle row": ("pd.DataFrame({'a': range(500)})",
                             "pd.DataFrame({'a': [*range(200), -1, *range(201, 500)]})"),
    "a series' middle value": ("pd.Series(range(500))", "pd.Series([*range(200), -1, *range(201, 500)])"),
    "a long array's middle": ("np.arange(5000)", "np.where(np.arange(5000) == 2000, -1, np.arange(5000))"),
    "what a mask hides": ("np.ma.masked_array([1, 2], [0, 1])", "np.ma.masked_array([1, 2], [1, 0])"),
    "a long masked array": ("np.ma.masked_array(np.arange(5000), np.arange(5000) == 3)",
                            "np.ma.masked_array(np.arange(5000), np.arange(5000) == 2500)"),
    "bytes behind a memoryview": ("memoryview(b'one')", "memoryview(b'two')"),
    "a closure's value": ("closure(1)", "closure(2)"),
    "a lambda": ("(lambda x: x + 1)", "(lambda x: x + 2)"),
    "a partial function's argument": ("functools.partial(int, base=2)", "functools.partial(int, base=8)"),
    "an object without a repr": ("Plain(1)", "Plain(2)"),
    "an object with slots": ("Slots(1)", "Slots(2)"),
    "an object whose repr shows too little": ("Silent(1)", "Silent(2)"),
    "keys of two types": ("{1: 'a', '1': 'b'}", "{'1': 'a', 1: 'b'}"),
    "a key's type": ("{1: 'a'}", "{'1': 'a'}"),
    "a number's type": ("1", "1.0"),
    "a truth for a number": ("1", "True"),
    "a tuple for a list": ("(1, 2)", "[1, 2]"),
    "an array's type": ("np.arange(3, dtype='i4')", "np.arange(3, dtype='i8')"),
    "a deep entry": ("{'a': {'b': {'c': [1, {2}]}}}", "{'a': {'b': {'c': [1, {3}]}}}"),
    "a sign of zero": ("0.0", "-0.0"),
    "a container subclass": ("collections.OrderedDict(a=1)", "{'a': 1}"),
    "a default": ("collections.defaultdict(int)", "collections.defaultdict(list)"),
    "a deque's length": ("collections.deque([1], 2)", "collections.deque([1], 3)"),
    "a long text's end": ("'x' * 100_000 + 'a'", "'x' * 100_000 + 'b'"),
    "an array of objects": ("np.array([Plain(1)], dtype=object)", "np.array([Plain(2)], dtype=object)"),
    "a bound method's object": ("Plain(1).value", "Plain(2).value"),
    "a time": ("datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 1, microsecond=1)"),
    "an enum": ("Colour.RED", "Colour.BLUE"),
    "a compiled pattern's flags": ("re.compile('a')", "re.compile('a', re.I)"),
    "an open file's path": ("open('report.py')", "open('program.py')"),
    "a generator": ("(i for i in [1])", "(i for i in [2])"),
}  # fmt: skip
_USES = """
import collections, datetime, enum, functools, re
class Plain:
    def __init__(self, x): self.x = x
    def value(self): return self.x
class Slots:
    __slots__ = ("x",)
    def __init__(self, x): self.x = x
class Silent(Plain):
    def __repr__(self): return "Silent()"
class Colour(enum.Enum): RED = 1; BLUE = 2
def closure(x):
    def inner(): return x
    return inner
"""


def _case(what: str) -> Case:
    """Return a case that changes a config's entry alone: the first run's answers must not come again."""
    first, second = _PAIRS[what]
    text = f"""
class P(EnvironmentProvider):
    def build_env_local(self): return {{"which": Path("turn").read_text()}}
class R(BaseRunner):
    @staticmethod
    def forward(idx, which): return which
answer = []
for turn, given in enumerate([{first}, {second}]):
    Path("turn").write_text(str(turn))
    answer.append(list(R(P({{"given": given}}), output_dir="out", progress=False)(range(4))))
right = [['0'] * 4, ['1'] * 4]
"""
    return Case(f"resumes: {what}", text, _USES, workers=(1,))


def draw(rng: Random) -> Case:
    """Draw an entry of a config that changes between two runs in one folder."""
    return _case(rng.choice(sorted(_PAIRS)))


FIXED = tuple(
    _case(what)
    for what in (
        "a table's middle row",
        "what a mask hides",
        "bytes behind a memoryview",
        "a closure's value",
        "an object without a repr",
        "keys of two types",
        "a long text's end",
    )
)
