"""Items of every kind: what can be looped over, what cannot, and what changes while it is looped over."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

_USES = """
import array, collections
class Own:
    def __iter__(self): return iter(range(9))
class Backwards(list):
    def __iter__(self): return iter(list(self[:])[::-1])
class GetItem:
    def __len__(self): return 9
    def __getitem__(self, i):
        if not 0 <= i < 9: raise IndexError(i)
        return i * i
class Hinted:
    def __init__(self): self.left = 9
    def __length_hint__(self): return 10 ** 9
    def __iter__(self): return self
    def __next__(self):
        self.left -= 1
        if self.left < 0: raise StopIteration
        return self.left
class Broken:
    def __iter__(self): raise LookupError("this cannot be looped over")
class Lying(list):
    def __len__(self): return 5
class Unpicklable:
    def __reduce__(self): raise LookupError("this cannot travel")
    def __repr__(self): return "Unpicklable()"
def breaks():
    yield 1
    raise LookupError("breaks in the middle")
def recursive():
    made = []
    made.append(made)
    return [made]
def f(x): return type(x).__name__, str(x) if isinstance(x, (int, float, str, tuple, dict, set)) else ""
"""
_CALLS = {
    "parallel_map": "parallel_map(f, {})",
    "ordered parallel_for": "list(parallel_for(f, {}, ordered=True))",
    "parallel_for": "sorted(parallel_for(f, {}), key=str)",
}
# what makes the items; fresh ones each time
_PLAIN = (
    "range({n})",
    "range({n}, 0, -3)",
    "list(range({n}))",
    "tuple('item %d' % i for i in range({n}))",
    "(i * i for i in range({n}))",
    "map(str, range({n}))",
    "zip(range({n}), 'abcdefgh')",
    "enumerate(range({n}))",
    "{{i % 7 for i in range({n})}}",
    "frozenset(range({n}))",
    "{{i: str(i) for i in range({n})}}.items()",
    "collections.deque(range({n}), 5)",
    "collections.UserList(range({n}))",
    "array.array('d', range({n}))",
    "np.arange({n})",
    "np.arange({n} * 2.0).reshape({n}, 2)",
    "np.array([{{1, 2}}, None, 'x'], dtype=object)",
    "[np.float32(i) for i in range({n})]",
    "pd.Index(range({n}))",
    "[None, {n}, 1.5, float('nan'), True, 'x', b'y', (), [], {{}}]",
    "[[i] * i for i in range({n})]",
    "[b'x' * 10 ** i for i in range(6)]",
    "[]",
    "iter([])",
    "Own()",
    "Backwards(range({n}))",
    "GetItem()",
    "Hinted()",
    "memoryview(bytes({n}))",
)
# what may be refused, but clearly, or taken for what a loop would see
_ODD = (
    "None",
    "{n}",
    "'some text'",
    "b'some bytes'",
    "{{'a': 1}}",
    "pd.DataFrame({{'a': [1, 2]}})",
    "pd.Series([1, 2, 3])",
    "np.int64(3)",
    "np.array(3)",
    "int",
    "(lambda: 1)",
    "object()",
    "[lambda: 1, lambda: 2]",
    "[threading.Lock()]",
    "[open(__file__)]",
    "[(i for i in range(3))]",
    "Broken()",
    "Lying()",
    "breaks()",
    "[sys]",
    "[Backwards]",
    "[Unpicklable()]",
    "recursive()",
)


def draw(rng: Random) -> Case:
    """Draw items and a way to run over them."""
    odd = rng.random() < 0.4
    made = rng.choice(_ODD if odd else _PLAIN).format(n=rng.choice((1, 2, 7, 40)))
    how = rng.choice(sorted(_CALLS))
    right = "[f(x) for x in make()]" if how != "parallel_for" else "sorted((f(x) for x in make()), key=str)"
    text = f"def make(): return {made}\nanswer = {_CALLS[how].format('make()')}\n"
    if not odd:
        text += f"right = {right}\n"
    # a loop fails by itself on what it cannot loop over; what cannot be pickled runs in process alone
    return Case(f"indices: {made}, {how}", text, _USES, own=("LookupError",), differ=odd, answers=not odd)


FIXED = (
    Case(
        "indices: a list that shrinks during parallel_map",
        """
items = list(range(2000))
def shrink():
    while not os.path.exists("begun"): time.sleep(0.01)
    del items[500:]
def f(x):
    if x == 10: open("begun", "w").close()
    time.sleep(0.001)
    return x
threading.Thread(target=shrink).start()
right = list(range(2000))
answer = parallel_map(f, items)
""",
        uses=_USES,
    ),
    Case(
        "indices: a list that the items of parallel_map empty",
        """
items = list(range(2000))
def f(x):
    if x == 100: items.clear()
    return x
right = list(range(2000))
answer = parallel_map(f, items)
""",
        uses=_USES,
    ),
    Case(
        "indices: a list that the consumer of parallel_for shortens",
        """
items = list(range(3000))
def f(x):
    time.sleep(0.0005)
    return x
right = list(range(3000))
answer = []
for value in parallel_for(f, items, ordered=True):
    answer.append(value)
    if len(answer) == 20: del items[1000:]
""",
        uses=_USES,
    ),
    Case(
        "indices: a list with an order of its own",
        """
class Backwards(list):
    def __iter__(self): return iter(self[::-1])
right = list(Backwards(range(50)))
answer = parallel_map(lambda x: x, Backwards(range(50)))
""",
        uses=_USES,
        answers=True,
    ),
    Case(
        "indices: a runner over a list that the items shorten",
        """
items = list(range(2000))
class R(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx == 100: items.clear()
        return idx
right = list(range(2000))
answer = R(P({}), progress=False)(items)
""",
        uses=_USES,
    ),
    Case(
        "indices: a dataset that has only __getitem__",
        """
class Data:
    def __len__(self): return 20
    def __getitem__(self, i):
        if not 0 <= i < 20: raise IndexError(i)
        return i * i
right = [[i * i for i in range(20)]] * 2
answer = [parallel_map(lambda x: x, Data()), list(parallel_for(lambda x: x, Data(), ordered=True))]
""",
        uses=_USES,
        answers=True,
    ),
    Case(
        "indices: a provider changed after it was made",
        """
class P(EnvironmentProvider):
    scale = 1
    def build_env_local(self): return {"scale": self.scale}
class R(BaseRunner):
    @staticmethod
    def forward(idx, scale): return idx * scale
provider = P({})
provider.scale = 5
right = [idx * 5 for idx in range(6)]
answer = R(provider, progress=False)(range(6))
""",
        uses=_USES,
    ),
)
