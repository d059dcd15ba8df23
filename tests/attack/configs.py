"""Configurations and arguments of every type: deep, huge, wrong, or hostile."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

_VALUES = (
    "None", "True", "False", "0", "-1", "1", "2", "2.0", "2.5", "-0.0", "float('nan')", "float('inf')", "1e400",
    "10 ** 400", "10 ** 5000", "-10 ** 400", "1j", "''", "'2'", "'two'", "'lots'", "'4GB'", "'-1'", "'false'",
    "'\\x00'", "'x' * 300", "'\\ud800'", "b'2'", "[]", "[2]", "()", "{}", "{'a': 1}", "{1: 2}", "{None: 1}", "set()",
    "object()", "Odd()", "recursive()", "deep()", "np.int64(2)", "np.array(2)",
    "np.float32('nan')", "int", "(lambda: 2)",
    "decimal.Decimal(2)", "fractions.Fraction(1, 2)", "pathlib.Path('x')", "'${missing}'", "'${oc.env:NOT_SET}'",
    "range(2)", "'04:00:00'", "[[2]]", "NotImplemented", "float('-inf')", "threading.Lock()", "Text('local')",
)  # fmt: skip
_KEYS = (
    "env",
    "n_workers",
    "options",
    "setup_timeout",
    "start_timeout",
    "n_wokers",
    "1",
    "None",
    "b'env'",
    "adapt",
)
_OPTIONS = (
    "memory_limit", "threads_per_worker", "processes", "memry_limit", "queue", "walltime", "n_workers",
    "dashboard_address", "silence_logs", "devices", "asynchronous",
)  # fmt: skip
_ARGUMENTS = (
    "batch_size", "max_retries", "seed", "on_error", "max_failures", "item_timeout", "setup_timeout", "resume",
    "output_dir", "shard_subdir", "progress", "retry_failed", "async_mode",
)  # fmt: skip
_USES = """
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


def draw(rng: Random) -> Case:
    """Draw a `parallel` block, or a runner's arguments."""
    if rng.random() < 0.5:
        return _draw_block(rng)
    names = rng.sample(_ARGUMENTS, rng.choice((1, 1, 2)))
    given = ", ".join(f"{name}={rng.choice(_VALUES)}" for name in names)
    text = f"""
runner = R(P({{}}), {given})
answer = [value for value in runner(range(12))]
"""
    if "async_mode" in names or "item_timeout" in names or "max_failures" in names:
        return Case(f"configs: a runner with {given}", text, _USES, differ=True)
    return Case(f"configs: a runner with {given}", f"{text}right = [f(x) for x in range(12)]\n", _USES)


def _draw_block(rng: Random) -> Case:
    if rng.random() < 0.15:
        block = rng.choice(_VALUES)
    else:
        entries = {"'env'": "'local'", "'n_workers'": rng.choice(("1", "2"))}
        for _ in range(rng.choice((1, 1, 2))):
            entries[repr(rng.choice(_KEYS))] = rng.choice(_VALUES)
        if rng.random() < 0.5:
            entries["'options'"] = f"{{{rng.choice(_OPTIONS)!r}: {rng.choice(_VALUES)}}}"
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
        _USES,
        parallel=False,
        workers=(0,),
        own=own,
    )


def _refused(block: str) -> Case:
    return Case(
        f"configs: {block[:90]}",
        f"set_parallel({block})\nanswer = parallel_map(f, range(12))\nright = 'an error'",
        _USES,
        parallel=False,
        workers=(0,),
    )


FIXED = (
    _refused("{'env': 'local' * 10_000}"),
    _refused("{'env': 'local', 'n_workers': 10 ** 5000}"),
    _refused("{'env': 'local', 'n_workers': 2, 'setup_timeout': Odd()}"),
    _refused("{'env': 'local', 'n_workers': 2, 'options': recursive()}"),
    _refused("{'env': 'local', 'n_workers': 2, 'options': {'memory_limit': 'lots'}}"),
    _refused("{'env': 'local', 'n_workers': 2, 'options': {'threads_per_worker': -1}}"),
    _refused("{'env': 'local', 'n_workers': 2, 'options': {'processes': 'false'}}"),
)
