"""Processes that end, freeze, fork or run out of files in the middle of a run."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

_ENDS = {
    "exits": "os._exit(3)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "crashes": "ctypes.string_at(0)",
    "aborts": "os.abort()",
    "closes its descriptors": "os.closerange(3, 256)",
    "closes its descriptors, all of them": "os.closerange(0, 256)",
    "forks a child that exits": "os.waitpid(os.fork() or os._exit(0), 0)",
    "forks a child that stays": "os.fork() or (time.sleep(2), os._exit(0))",
    "forks a child that returns": "os.fork()",
    "forks a child that raises": "os.fork() or divmod(1, 0)",
    "execs": "os.execv('/bin/true', ['true'])",
    "calls sys.exit": "sys.exit(3)",
    "takes all open files": "held.extend(os.dup(0) for _ in range(64))",
    "frees a process group": "os.setsid() if os.getpid() != os.getsid(0) else None",
    "changes directory": "os.chdir('/')",
    "ignores SIGTERM": "ignore_term()",
    "waits for any child": "wait_any()",
    "closes standard error": "os.close(2)",
    "clears its modules": "[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('espnet3')]",
    "raises alarm": "signal.alarm(1)",
    "freezes": "os.kill(os.getpid(), signal.SIGSTOP)",  # with an item_timeout
}
# after these the process goes on as if nothing had been
_HARMLESS = ("forks a child that exits", "forks a child that stays", "changes directory", "ignores SIGTERM",
             "waits for any child", "closes standard error", "clears its modules")  # fmt: skip
_USES = """
import ctypes, resource, signal
import distributed
held = []
def ignore_term():
    try: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError: ctypes.CDLL(None).signal(15, ctypes.c_void_p(1))  # Python allows it in the main thread alone
def wait_any():
    try: os.waitpid(-1, os.WNOHANG)
    except ChildProcessError: pass
"""


def draw(rng: Random) -> Case:
    """Draw what an item does to its process, once or always, and how the run goes on."""
    what = rng.choice(sorted(_ENDS))
    bad, always = rng.randrange(20), rng.random() < 0.5
    when = f"i == {bad}" if always else f"i == {bad} and once('did')"
    text = f"""def f(i):
    if {when}: {_ENDS[what]}
    return i
"""
    harmless = what in _HARMLESS
    how = rng.choice(("parallel_map", "record", "folder", "stream", "client"))
    how = "folder" if what == "freezes" else how
    runner = 'list(R(P({{}}), {}on_error="record", progress=False)(range(20)))'
    call = {
        "parallel_map": "answer = parallel_map(f, range(20))",
        "stream": "answer = list(parallel_for(f, range(20), ordered=True))",
        "record": f"answer = {runner.format('')}",
        "folder": f"answer = {runner.format('item_timeout=5, output_dir=home + chr(47) + chr(111), ')}",
        "client": "with get_client() as client:\n    answer = client.gather(client.map(f, range(20)))"
        if harmless
        else f"with get_client():\n    answer = {runner.format('')}",
    }[how]
    text += f"{call}\nanswer = [i if isinstance(i, int) else 'failed' for i in answer]\n"
    allowed = f"right = [i if i != {bad} or answer[i] != 'failed' else 'failed' for i in range(20)]\n"
    plain = "right = list(range(20))\n"
    workers = (1, 2) if harmless else (2,)
    own = {"calls sys.exit": ("SystemExit",), "forks a child that raises": ("ZeroDivisionError",)}.get(
        what, ()
    )
    return Case(
        f"faults: an item {'always' if always else 'once'} {what}, {how}",
        text + (plain if harmless else allowed),
        _USES,
        workers=workers,
        own=own,
        answers=harmless,
    )


FIXED = (
    Case(
        "faults: close_writers ends its process",
        """class R(BaseRunner):
    @staticmethod
    def forward(idx): return idx
    @staticmethod
    def close_writers(writers, state, **env): os._exit(9)
answer = R(P({}), output_dir="out", on_error="record", progress=False)(range(12))
right = "an error that names close_writers"
""",
        uses=_USES,
        workers=(2,),
    ),
    Case(
        "faults: an item in a thread of the client uses that client",
        """def inner(j): return j
def f(i): return parallel_map(inner, range(3), client=distributed.get_client())
with get_client({"env": "local", "n_workers": 2, "options": {"processes": False}}) as client:
    answer = parallel_map(f, range(8), client=client)
right = [[0, 1, 2]] * 8
""",
        uses=_USES,
        workers=(2,),
    ),
    Case(
        "faults: a moment without a free descriptor while workers join",
        """def f(i):
    time.sleep(0.05)
    if i % 15 == 5 and once(f"died{i}"): os._exit(1)
    return i
def starve():
    while not os.path.exists("died5"): time.sleep(0.001)
    for _ in range(60):
        try:
            while True: held.append(os.dup(0))
        except OSError: time.sleep(0.03)
        while held: os.close(held.pop())
        time.sleep(0.03)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
starving = threading.Thread(target=starve)
starving.start()
answer = list(R(P({}), on_error="record", progress=False)(range(120)))
starving.join()  # the report needs a descriptor of its own
right = list(range(120))
""",
        uses=_USES,
        workers=(2,),
    ),
    Case(
        "faults: a worker is frozen, and nobody has set a timeout",
        """def f(i):
    if i == 5 and once("frozen"): os.kill(os.getpid(), signal.SIGSTOP)
    return i
answer = [i if isinstance(i, int) else 5 for i in R(P({}), on_error="record", progress=False)(range(40))]
right = list(range(40))
""",
        uses=_USES,
        workers=(2,),
        limit=400,
        slow=True,
    ),
)
