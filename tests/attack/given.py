"""What a program gives: configurations and items."""

from random import Random

from tests.attack.case import Case

# --- configs --------------------------------------------------------------------------------------

_CONFIGS_VALUES = (
    "None", "True", "False", "0", "-1", "1", "2", "2.0", "2.5", "-0.0", "float('nan')", "float('inf')", "1e400",
    "10 ** 400", "10 ** 5000", "-10 ** 400", "1j", "''", "'2'", "'two'", "'lots'", "'4GB'", "'-1'", "'false'",
    "'\\x00'", "'x' * 300", "'\\ud800'", "b'2'", "[]", "[2]", "()", "{}", "{'a': 1}", "{1: 2}", "{None: 1}", "set()",
    "object()", "Odd()", "recursive()", "deep()", "np.int64(2)", "np.array(2)",
    "np.float32('nan')", "int", "(lambda: 2)",
    "decimal.Decimal(2)", "fractions.Fraction(1, 2)", "pathlib.Path('x')", "'${missing}'", "'${oc.env:NOT_SET}'",
    "range(2)", "'04:00:00'", "[[2]]", "NotImplemented", "float('-inf')", "threading.Lock()", "Text('local')",
)  # fmt: skip
_CONFIGS_KEYS = ("env", "n_workers", "options", "setup_timeout", "start_timeout", "n_wokers", "adapt")
_CONFIGS_OPTIONS = (
    "memory_limit", "threads_per_worker", "processes", "memry_limit", "queue", "walltime", "n_workers",
    "dashboard_address", "silence_logs", "devices", "asynchronous",
)  # fmt: skip
_CONFIGS_ARGUMENTS = (
    "batch_size", "max_retries", "seed", "on_error", "max_failures", "item_timeout", "setup_timeout", "resume",
    "output_dir", "shard_subdir", "progress", "retry_failed", "async_mode",
)  # fmt: skip
_CONFIGS_USES = """
import decimal, fractions, pathlib
from omegaconf import OmegaConf
class Odd:
    def __repr__(self): raise LookupError("no repr")
class Text(str): pass
def recursive():
    made = {}
    made["itself"] = made
    return made
def deep():
    made = {}
    for _ in range(3000): made = {"a": made}
    return made
def f(x): return x * x
"""


def configs(rng: Random) -> Case:
    """Draw a `parallel` block, or a runner's arguments."""
    if rng.random() < 0.5:
        return _draw_block(rng)
    names = rng.sample(_CONFIGS_ARGUMENTS, rng.choice((1, 1, 2)))
    given = ", ".join(f"{name}={rng.choice(_CONFIGS_VALUES)}" for name in names)
    text = f"""
runner = R(P({{}}), {given})
answer = [value for value in runner(range(12))]
"""
    if "async_mode" in names or "item_timeout" in names or "max_failures" in names:
        return Case(f"configs: a runner with {given}", text, _CONFIGS_USES, differ=True)
    return Case(
        f"configs: a runner with {given}", f"{text}right = [f(x) for x in range(12)]\n", _CONFIGS_USES
    )


def _draw_block(rng: Random) -> Case:
    if rng.random() < 0.15:
        block = rng.choice(_CONFIGS_VALUES)
    else:
        entries = {"'env'": "'local'", "'n_workers'": rng.choice(("1", "2"))}
        for _ in range(rng.choice((1, 1, 2))):
            entries[repr(rng.choice(_CONFIGS_KEYS))] = rng.choice(_CONFIGS_VALUES)
        if rng.random() < 0.5:
            entries["'options'"] = f"{{{rng.choice(_CONFIGS_OPTIONS)!r}: {rng.choice(_CONFIGS_VALUES)}}}"
        block = f"{{{', '.join(f'{key}: {value}' for key, value in entries.items())}}}"
        if rng.random() < 0.1:
            block = f"OmegaConf.create({block})"
    # OmegaConf refuses what it cannot hold by itself
    own = ("UnsupportedValueType", "KeyValidationError", "RecursionError") if "OmegaConf" in block else ()
    return Case(
        f"configs: {block}",
        f"""
set_parallel({block})
right = [f(x) for x in range(12)]
answer = parallel_map(f, range(12))
""",
        _CONFIGS_USES,
        parallel=False,
        workers=(0,),
        own=own,
    )


# --- indices --------------------------------------------------------------------------------------

_INDICES_USES = """
import array, collections
class GetItem:
    def __len__(self): return 9
    def __getitem__(self, i):
        if not 0 <= i < 9: raise IndexError(i)
        return i * i
class Broken:
    def __iter__(self): raise LookupError("this cannot be looped over")
class Unpicklable:
    def __reduce__(self): raise LookupError("this cannot travel")
    def __repr__(self): return "Unpicklable()"
def breaks():
    yield 1
    raise LookupError("breaks in the middle")
def f(x): return type(x).__name__, str(x) if isinstance(x, (int, float, str, tuple, dict, set)) else ""
"""
_INDICES_CALLS = {
    "parallel_map": "parallel_map(f, {})",
    "ordered parallel_for": "list(parallel_for(f, {}, ordered=True))",
    "parallel_for": "sorted(parallel_for(f, {}), key=str)",
}
# what makes the items; fresh ones each time
_INDICES_PLAIN = (
    "range({n})", "list(range({n}))", "tuple('item %d' % i for i in range({n}))",
    "(i * i for i in range({n}))", "map(str, range({n}))", "zip(range({n}), 'abcdefgh')",
    "{{i % 7 for i in range({n})}}", "{{i: str(i) for i in range({n})}}.items()",
    "collections.deque(range({n}), 5)", "array.array('d', range({n}))", "np.arange({n})",
    "np.array([{{1, 2}}, None, 'x'], dtype=object)", "pd.Index(range({n}))",
    "[None, {n}, 1.5, float('nan'), True, 'x', b'y', (), [], {{}}]", "[b'x' * 10 ** i for i in range(6)]",
    "[]", "GetItem()",
)  # fmt: skip
# what may be refused, but clearly, or taken for what a loop would see
_INDICES_ODD = (
    "None", "{n}", "'some text'", "{{'a': 1}}", "pd.DataFrame({{'a': [1, 2]}})", "pd.Series([1, 2, 3])",
    "np.array(3)", "[lambda: 1, lambda: 2]", "[threading.Lock()]", "[(i for i in range(3))]", "Broken()",
    "breaks()", "[Unpicklable()]",
)  # fmt: skip


def indices(rng: Random) -> Case:
    """Draw items and a way to run over them."""
    odd = rng.random() < 0.4
    made = rng.choice(_INDICES_ODD if odd else _INDICES_PLAIN).format(n=rng.choice((1, 2, 7, 40)))
    how = rng.choice(sorted(_INDICES_CALLS))
    right = "[f(x) for x in make()]" if how != "parallel_for" else "sorted((f(x) for x in make()), key=str)"
    text = f"def make(): return {made}\nanswer = {_INDICES_CALLS[how].format('make()')}\n"
    if not odd:
        text += f"right = {right}\n"
    # a loop fails by itself on what it cannot loop over; what cannot be pickled runs in process alone
    return Case(
        f"indices: {made}, {how}", text, _INDICES_USES, own=("LookupError",), differ=odd, answers=not odd
    )
