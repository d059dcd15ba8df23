"""Items that take long, in many ways, and what they draw meanwhile: the same with a seed, wherever they run."""

from __future__ import annotations

from random import Random

from tests.attack.case import Case

_BUSY = {
    "sleeps": "time.sleep({s})",
    "sleeps in C, holding everything": "ctypes.PyDLL(None).usleep(int({s} * 1e6))",
    "counts": "end = time.monotonic() + {s}\nwhile time.monotonic() < end: pass",
    "starts threads": "t = threading.Thread(target=time.sleep, args=({s},)); t.start(); t.join()",
    "starts a process": "subprocess.run([sys.executable, '-c', 'pass'], check=True)",
    "collects garbage": "made = [[i] for i in range(200_000)]; gc.collect()",
    "waits in select": "select.select([], [], [], {s})",
    "runs an event loop": "asyncio.run(asyncio.sleep({s}))",
    "prints much": "print('x' * 100, file=sys.stderr)\ntime.sleep({s})",
}
_DRAWS = (
    "random.random()",
    "random.sample(range(100), 3)",
    "float(np.random.rand())",
    "np.random.permutation(5).tolist()",
    "random.gauss(0, 1)",
)
_USES = """
import asyncio, ctypes, gc, random, select, subprocess
class Plain:
    def __init__(self, x): self.x = x
"""


def _indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines())


def draw(rng: Random) -> Case:
    """Draw what items do, for how long, what they draw, and whether a client is open."""
    what = rng.choice(sorted(_BUSY))
    busy = _indented(_BUSY[what].format(s=rng.choice((0.001, 0.02, 0.2))))
    draws = rng.choice(_DRAWS)
    n = rng.choice((5, 17))
    options = rng.choice(("", "batch_size=4, ", 'output_dir="out", ', "max_retries=1, "))
    call = f"answer = list(R(P({{}}), seed={rng.randrange(9)}, {options}progress=False)(range({n})))"
    if rng.random() < 0.4:
        options = rng.choice(("{}", "{'threads_per_worker': 1}"))
        block = f"{{'env': 'local', 'n_workers': W, 'options': {options}}}"
        call = f"with get_client({block}):\n    {call}"
    text = f"""class R(BaseRunner):
    @staticmethod
    def forward(idx):
        first = {draws}
{busy}
        return [idx, first, {draws}]
{call}
"""
    return Case(f"long items: one that {what}, and {draws}", text, _USES, answers=True)


def _seeds(indices: str, plain: str = "") -> str:
    return f"""class R(BaseRunner):
    @staticmethod
    def forward(idx): return random.random()
answer = R(P({{}}), seed=1, progress=False)({indices})
{plain}
"""


FIXED = (
    Case(
        "long items: what they draw beside Dask's own draws",
        """class R(BaseRunner):
    @staticmethod
    def forward(idx):
        time.sleep(0.3)
        return random.random()
with get_client({"env": "local", "n_workers": W}) as client:
    held = client.scatter([list(range(100_000))] * 4, broadcast=True)
    answer = R(P({}), seed=1, progress=False)(range(24))
""",
        uses=_USES,
        answers=True,
    ),
    Case("long items: seeds of sets", _seeds("[frozenset({'a', 'b', 'c', 'd'}), frozenset('efghi')]"), _USES),
    Case("long items: seeds of objects", _seeds("[Plain(1), Plain(2)]"), _USES),
    Case(
        "long items: seeds of long arrays",
        _seeds(
            "[np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))]",
            "answer = len(set(answer))\nright = 2",
        ),
        _USES,
    ),
)
