"""Items that raise: exceptions without a text, that cannot travel, that are none, or that end programs."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

_RAISED = {
    "ValueError('bad item')": "ValueError",
    "KeyError(3)": "KeyError",
    "StopIteration(1)": "StopIteration",
    "StopAsyncIteration()": "StopAsyncIteration",
    "GeneratorExit()": "GeneratorExit",
    "AssertionError()": "AssertionError",
    "MemoryError()": "MemoryError",
    "RecursionError('deep')": "RecursionError",
    "TimeoutError('item')": "TimeoutError",
    "ConnectionResetError()": "ConnectionResetError",
    "EOFError()": "EOFError",
    "BrokenPipeError(32, 'gone')": "BrokenPipeError",
    "OSError(28, 'No space left', 'file')": "OSError",
    "UnicodeDecodeError('utf-8', b'x', 0, 1, 'why')": "UnicodeDecodeError",
    "UserWarning('odd')": "UserWarning",
    "Base('base')": "Base",
    "Two(1, 2)": "Two",
    "Keyword(code=5)": "Keyword",
    "NoText()": "NoText",
    "ExitText()": "ExitText",
    "NoRepr()": "NoRepr",
    "Locked()": "Locked",
    "NoPickle()": "NoPickle",
    "BadPickle()": "BadPickle",
    "Slots(4)": "Slots",
    "ValueError('x' * 10 ** 6)": "ValueError",
    "ValueError('\\ud800')": "ValueError",
    "ValueError(threading.Lock())": "ValueError",
    "ValueError(*[lambda: 1] * 3)": "ValueError",
    "cycle()": "ValueError",
    "json.JSONDecodeError('m', 'doc', 1)": "JSONDecodeError",
    "KeyboardInterrupt()": "KeyboardInterrupt",
    "SystemExit(3)": "SystemExit",
    "subprocess.CalledProcessError(1, ['x'])": "CalledProcessError",
}
_USES = """
import json, subprocess
class Base(BaseException): pass
class Two(Exception):
    def __init__(self, one, two): super().__init__(f"{one} and {two}")
class Keyword(Exception):
    def __init__(self, *, code): super().__init__(); self.code = code
class NoText(Exception):
    def __str__(self): raise LookupError("no text")
class ExitText(Exception):
    def __str__(self): raise SystemExit(7)
class NoRepr(Exception):
    def __repr__(self): raise LookupError("no repr")
class Locked(Exception):
    def __init__(self): super().__init__("locked"); self.lock = threading.Lock()
class NoPickle(Exception):
    def __reduce__(self): raise LookupError("cannot travel")
def never(): raise LookupError("cannot be made again")
class BadPickle(Exception):
    def __reduce__(self): return never, ()
class Slots(Exception):
    __slots__ = ("a",)
    def __init__(self, a): self.a = a
def cycle():
    error = ValueError("a cycle"); other = KeyError(); error.__cause__ = other; other.__cause__ = error
    return error
"""
_STOP = ("KeyboardInterrupt", "SystemExit")  # of these two a runner makes no record: they end the program


def draw(rng: Random) -> Case:
    """Draw an exception, and what the run is told to do with it."""
    raised = rng.choice(sorted(_RAISED))
    bad, items = rng.randrange(8), 8
    count = f"def f(i):\n    note(i)\n    if i == {bad}: raise {raised}\n    return i\n"
    body = count
    how = rng.choice(("parallel_map", "parallel_for", "raise", "record", "record in a folder", "provider"))
    if how == "provider":
        return _raised_by_provider(raised)
    if how.startswith("record") and _RAISED[raised] in _STOP:
        how = "raise"
    name = f"exceptions: {raised}, {how}"
    folder = 'output_dir="out", ' if rng.random() < 0.5 or "folder" in how else ""
    if how == "parallel_map":
        call = f"parallel_map(f, range({items}))"
    elif how == "parallel_for":
        call = f"list(parallel_for(f, range({items})))"
    else:
        on = "raise" if how == "raise" else "record"
        call = f'list(R(P({{}}), {folder}on_error="{on}", progress=False)(range({items})))'
    if how.startswith("record"):
        call = (
            f"[value if isinstance(value, int) else value.error_type.rpartition('.')[2] for value in {call}]"
        )
        body += f"right = [i if i != {bad} else {_RAISED[raised]!r} for i in range({items})]\n"
    # what cannot be pickled arrives as a stand-in that names it
    return Case(
        name,
        f"{body}answer = {call}\n",
        _USES,
        own=(_RAISED[raised],),
        once=True,
        differ=True,
        answers=how.startswith("record"),
    )


def _raised_by_provider(raised: str) -> Case:
    text = f"""class P(EnvironmentProvider):
    def build_env_local(self): raise {raised}
def f(i): return i
answer = R(P({{}}), progress=False)(range(4))
"""
    own = (_RAISED[raised],) if _RAISED[raised] in _STOP else ()
    interrupts = (
        _RAISED[raised] == "KeyboardInterrupt"
    )  # in this process it is Ctrl-C, which nobody turns into another
    return Case(f"exceptions: {raised}, by the provider", text, _USES, own=own, differ=interrupts)


def _many(call: str) -> str:
    return f"""
def f(i):
    if i % 10 == 7: raise ValueError("a bad item")
    return i
runner = R(P({{}}), on_error="record", progress=False)
{call}
answer = [sum(not isinstance(value, int) for value in found), runner.summary.deaths]
right = [2000, 0]
"""


FIXED = (
    Case(
        "exceptions: StopIteration, once",
        """
def f(i):
    note(i)
    if i == 3: raise StopIteration("of the item")
    return i
answer = parallel_map(f, range(8))
""",
        uses=_USES,
        own=("StopIteration", "RuntimeError"),
        once=True,
        differ=True,
    ),
    Case(
        "exceptions: fields that their arguments made",
        """
raised = [SystemExit(3), StopIteration(4), OSError(2, "none", "file"), ImportError("no", name="x"),
          UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), SyntaxError("bad", ("file", 1, 2, "text"))]
fields = ["code", "value", "filename", "name", "reason", "lineno"]
def f(i): raise raised[i]
answer = []
for i, field in enumerate(fields):
    try: parallel_map(f, [i])
    except BaseException as error: answer.append(getattr(error, field))
right = [3, 4, "file", "x", "why", 1]
""",
        uses=_USES,
        answers=True,
    ),
    Case(
        "exceptions: 20,000 items, a tenth of which fail",
        _many("found = runner(range(20_000))"),
        answers=True,
    ),
    Case(
        "exceptions: 20,000 items, a tenth of which fail, in threads of a client",
        _many(
            'with get_client({"env": "local", "n_workers": 2, "options": {"processes": False}}):\n'
            "    found = runner(range(20_000))"
        ),
        workers=(2,),
        answers=True,
    ),
    Case(
        "exceptions: a text that exits, and standard error that cannot be written to",
        """
class Odd(Exception):
    def __str__(self): raise SystemExit(7)
def f(i):
    os.close(2)
    os.open("/dev/full", os.O_WRONLY)
    if i == 1: raise Odd()
    return i
found = R(P({}), on_error="record", progress=False)(range(4))
answer = [value if isinstance(value, int) else value.error_type for value in found]
right = [0, "__main__.Odd", 2, 3]
""",
        uses=_USES,
        answers=True,
    ),
)
