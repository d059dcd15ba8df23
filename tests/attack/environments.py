"""Odd surroundings: what a batch node, a service or a careless program gives us to start workers in."""

from __future__ import annotations

from random import Random

from tests.attack.case import PARALLEL, Case

# each line is carried out before the run
_ODD = {
    "a long TMPDIR": "os.environ['TMPDIR'] = os.path.abspath('x' * 120); os.mkdir('x' * 120)",
    "a TMPDIR that is not there": "os.environ['TMPDIR'] += '/missing'",
    "a Path in sys.path": "sys.path.insert(0, pathlib.Path('.'))",
    "a folder that is gone in sys.path": "sys.path.insert(0, '/nowhere/at/all')",
    "no standard error": "sys.stderr = None",
    "closed standard error": "os.close(2)",
    "closed sys.stderr": "sys.stderr.close()",
    "standard error that is full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "standard error in memory": "sys.stderr = io.StringIO()",
    "no standard output": "sys.stdout = None",
    "no HOME": "os.environ.pop('HOME', None); os.environ.pop('PATH', None)",
    "an empty environment": "tmp = os.environ['TMPDIR']; os.environ.clear(); os.environ['TMPDIR'] = tmp",
    "bytes in the environment": "os.environb[b'ODD'] = b'\\xff\\xfe'",
    "newlines in the environment": "os.environ['ODD'] = 'a\\nb=c\\n'",
    "ignored SIGCHLD": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "blocked signals": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})",
    "default SIGPIPE": "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
    "few open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))",
    "no core files": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "an umask of 077": "os.umask(0o077)",
    "an umask of 0": "os.umask(0)",
    "warnings that are errors": "warnings.simplefilter('error')",
    "spawned processes": "multiprocessing.set_start_method('spawn')",
    "a running event loop's policy": "asyncio.set_event_loop(asyncio.new_event_loop())",
    "threads beside": "[threading.Thread(target=time.sleep, args=(2,)).start() for _ in range(20)]",
    "a proxy": "os.environ.update(http_proxy='http://127.0.0.1:9', https_proxy='http://127.0.0.1:9')",
    "Dask's settings": "os.environ['DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT'] = 'soon'",
    "a trace function": "sys.settrace(lambda *_: None)",
    "no garbage collection": "gc.disable(); gc.freeze()",
}
_USES = """
import asyncio, gc, io, multiprocessing, pathlib, resource, signal, warnings
def f(x): return x * x
"""


def _program(odd: list[str], call: str) -> str:
    lines = "\n".join(_ODD[name] for name in odd)
    return f"here = home\n{lines}\n{PARALLEL}right = [f(x) for x in range(30)]\nanswer = {call}\n"


_CALLS = (
    "parallel_map(f, range(30))",
    "list(parallel_for(f, range(30), ordered=True))",
    "list(R(P({}))(range(30)))",
    "list(R(P({}), output_dir=here + '/out')(range(30)))",
)


def draw(rng: Random) -> Case:
    """Draw one or two oddities and a call."""
    odd = rng.sample(sorted(_ODD), rng.choice((1, 1, 2)))
    return Case(
        f"environments: {', '.join(odd)}",
        _program(odd, rng.choice(_CALLS)),
        _USES,
        parallel=False,
        differ=True,
    )


# what a run goes on in as if nothing had been, and a call
_FIXED = {
    "a long TMPDIR": _CALLS[0],
    "a Path in sys.path": _CALLS[0],
    "no standard error": _CALLS[2],
    "closed standard error": _CALLS[2],
    "closed sys.stderr": _CALLS[2],
}
FIXED = tuple(
    Case(f"environments: {name}", _program([name], call), _USES, parallel=False, answers=True)
    for name, call in _FIXED.items()
)
