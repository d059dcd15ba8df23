"""What happens to a program: exceptions and odd surroundings."""

from random import Random

from tests.attack.case import PARALLEL, Case

# --- exceptions -----------------------------------------------------------------------------------

_EXCEPTIONS_RAISED = (
    "ValueError('bad item')", "KeyError(3)", "StopIteration(1)", "GeneratorExit()", "RecursionError('deep')",
    "TimeoutError('item')", "OSError(28, 'No space left', 'file')",
    "UnicodeDecodeError('utf-8', b'x', 0, 1, 'why')", "Base('base')", "Two(1, 2)", "Keyword(code=5)",
    "NoText()", "Locked()", "NoPickle()", "BadPickle()", "ValueError('x' * 10 ** 6)",
    "ValueError(threading.Lock())", "cycle()", "KeyboardInterrupt()", "SystemExit(3)",
)  # fmt: skip
_EXCEPTIONS_USES = """
class Base(BaseException): pass
class Two(Exception):
    def __init__(self, one, two): super().__init__(f"{one} and {two}")
class Keyword(Exception):
    def __init__(self, *, code): super().__init__(); self.code = code
class NoText(Exception):
    def __str__(self): raise LookupError("no text")
class Locked(Exception):
    def __init__(self): super().__init__("locked"); self.lock = threading.Lock()
class NoPickle(Exception):
    def __reduce__(self): raise LookupError("cannot travel")
def never(): raise LookupError("cannot be made again")
class BadPickle(Exception):
    def __reduce__(self): return never, ()
def cycle():
    error = ValueError("a cycle"); other = KeyError(); error.__cause__ = other; other.__cause__ = error
    return error
"""
# of these two a runner makes no record: they end the program
_EXCEPTIONS_STOP = ("KeyboardInterrupt", "SystemExit")


def _kind_of(raised: str) -> str:
    return "ValueError" if raised == "cycle()" else raised.partition("(")[0]


def exceptions(rng: Random) -> Case:
    """Draw an exception, and what the run is told to do with it."""
    raised = rng.choice(sorted(_EXCEPTIONS_RAISED))
    bad, items = rng.randrange(8), 8
    body = f"def f(i):\n    note(i)\n    if i == {bad}: raise {raised}\n    return i\n"
    how = rng.choice(("parallel_map", "parallel_for", "raise", "record", "record in a folder", "provider"))
    if how == "provider":
        return _raised_by_provider(raised)
    if how.startswith("record") and _kind_of(raised) in _EXCEPTIONS_STOP:
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
        body += f"right = [i if i != {bad} else {_kind_of(raised)!r} for i in range({items})]\n"
    # what cannot be pickled arrives as a stand-in that names it
    return Case(
        name,
        f"{body}answer = {call}\n",
        _EXCEPTIONS_USES,
        own=(_kind_of(raised),),
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
    own = (_kind_of(raised),) if _kind_of(raised) in _EXCEPTIONS_STOP else ()
    # in this process it is Ctrl-C, which nobody turns into another
    interrupts = _kind_of(raised) == "KeyboardInterrupt"
    return Case(f"exceptions: {raised}, by the provider", text, _EXCEPTIONS_USES, own=own, differ=interrupts)


# --- environments ---------------------------------------------------------------------------------

# each line is carried out before the run
_ENVIRONMENTS_ODD = {
    "a long TMPDIR": "os.environ['TMPDIR'] = os.path.abspath('x' * 120); os.mkdir('x' * 120)",
    "a TMPDIR that is not there": "os.environ['TMPDIR'] += '/missing'",
    "no standard error": "sys.stderr = None",
    "no HOME": "os.environ.pop('HOME', None); os.environ.pop('PATH', None)",
    "ignored SIGCHLD": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "few open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))",
    "an umask of 077": "os.umask(0o077)",
    "warnings that are errors": "warnings.simplefilter('error')",
    "spawned processes": "multiprocessing.set_start_method('spawn')",
    "threads beside": "[threading.Thread(target=time.sleep, args=(2,)).start() for _ in range(20)]",
    "a proxy": "os.environ.update(http_proxy='http://127.0.0.1:9', https_proxy='http://127.0.0.1:9')",
    "Dask's settings": "os.environ['DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT'] = 'soon'",
}
_ENVIRONMENTS_USES = """
import multiprocessing, resource, signal, warnings
def f(x): return x * x
"""


def _program(odd: list[str], call: str) -> str:
    lines = "\n".join(_ENVIRONMENTS_ODD[name] for name in odd)
    return f"here = home\n{lines}\n{PARALLEL}right = [f(x) for x in range(30)]\nanswer = {call}\n"


_ENVIRONMENTS_CALLS = (
    "parallel_map(f, range(30))",
    "list(parallel_for(f, range(30), ordered=True))",
    "list(R(P({}))(range(30)))",
    "list(R(P({}), output_dir=here + '/out')(range(30)))",
)


def environments(rng: Random) -> Case:
    """Draw one or two oddities and a call."""
    odd = rng.sample(sorted(_ENVIRONMENTS_ODD), rng.choice((1, 1, 2)))
    return Case(
        f"environments: {', '.join(odd)}",
        _program(odd, rng.choice(_ENVIRONMENTS_CALLS)),
        _ENVIRONMENTS_USES,
        parallel=False,
        differ=True,
    )
