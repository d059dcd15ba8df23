"""Classes of the caller's own script come back as themselves, from wherever the script came."""

from tests.parallel.contract.helpers import run_script
from tests.parallel.contract.notebooks import notebook

CLASSES = """
import dataclasses, enum, functools, typing
from espnet3.parallel import (
    BaseRunner, EnvironmentProvider, ItemError, get_client, parallel_for, parallel_map, parallel_submit, set_parallel
)

class Plain:
    seen = 0
    def __init__(self, x): self.x = x
    def setting(self): return SETTING

SETTING = "as it was"
method = Plain.setting

class Slots:
    __slots__ = ("x", "__hidden")
    def __init__(self, x): self.x, self.__hidden = x, -x
    def hidden(self): return self.__hidden

@dataclasses.dataclass(slots=True)
class Data:
    x: int

class Color(enum.Enum):
    RED = 1
    GREEN = 2

class Pair(typing.NamedTuple):
    x: int

class Outer:
    class Inner(Plain):
        pass

@functools.cache
def load(): return [7]

@functools.lru_cache(maxsize=2)
def loaded(x): return load() + [x]

def use_caches(x):
    assert load() is load() and loaded(x) is loaded(x)
    return loaded(x)[1]

def local():
    class Local:
        def __init__(self, x): self.x = x
    return Local

Local = local()
KINDS = [Plain, Slots, Data, Pair, Outer.Inner, Local]

def make(x):
    return [kind(x) for kind in KINDS], {Color.GREEN: Plain}

def check(answers):
    for answer, (objects, table) in enumerate(answers):
        assert [type(each) for each in objects] == KINDS
        assert all(isinstance(each, kind) for each, kind in zip(objects, KINDS))
        assert [each.x for each in objects] == len(KINDS) * [answer]
        assert objects[1].hidden() == -answer and objects[2] == Data(answer)
        ((color, kind),) = table.items()
        assert color is Color.GREEN and kind is Plain

class MyError(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code, self.color = code, Color.RED

class Keyword(LookupError):
    color = Color.RED
    def __init__(self, *, code):
        super().__init__(f"no {code}")
        self.code = code

def fail(x, kind): raise kind(x, "why") if kind is MyError else kind(code=x)

def caught(call, kind):
    try:
        call()
    except kind as error:
        assert type(error) is kind and error.code == 3 and error.color is Color.RED
        return "\\n".join(error.__notes__)
    raise AssertionError("nothing was raised")

class Provider(EnvironmentProvider):
    def build_env_local(self): return {}

class Make(BaseRunner):
    @staticmethod
    def forward(idx): return make(idx)

class Fail(BaseRunner):
    @staticmethod
    def forward(idx): return fail(3, MyError)
"""

USES = """
set_parallel({"env": "local", "n_workers": 2})
check(Make(Provider(), progress=False)(range(40)))

with get_client() as client:
    check(parallel_map(make, range(40)))
    check(parallel_for(make, range(40), ordered=True))
    assert parallel_map(lambda each: each.x, [Slots(3), Data(4), Plain(5)]) == [3, 4, 5]
    assert parallel_map(Plain.setting, [Plain(5)]) == ["as it was"]
    assert parallel_map(use_caches, range(3)) == [0, 1, 2] and parallel_map(loaded, [1]) == [[7, 1]]
    assert Plain.setting is method and method.__globals__ is globals()
    for n, _ in enumerate(parallel_for(Plain, range(500)), 1):
        Plain.seen += 1  # what comes in must not put the class back to what it was when it left
        assert Plain.seen == n
    for kind in (MyError, Keyword):
        bad = functools.partial(fail, kind=kind)
        assert "item 0 (3)" in caught(lambda: parallel_map(bad, [3]), kind)
        assert "item 0 (3)" in caught(lambda: list(parallel_for(bad, [3])), kind)
        for call in (client.submit(bad, 3), client.map(bad, [3])[0], parallel_submit(bad, 3)):
            assert "fail(3)" in caught(call.result, kind)
    check(client.gather(client.map(make, range(10))))
    check([future.result() for future in [parallel_submit(make, x) for x in range(3)]])
    try:
        Fail(Provider(), progress=False)([7])
    except ItemError as error:
        assert type(error.__cause__) is MyError and error.index == 7
assert "fail(3)" in caught(parallel_submit(functools.partial(fail, kind=MyError), 3).result, MyError)
Plain.value = 2  # a changed class reaches the workers
assert parallel_map(lambda _: Plain.value, range(4)) == 4 * [2]
print("all is well")
"""


def test_of_a_script(tmp_path):
    """Instances, classes and exceptions of a script without a `__main__` guard keep their classes."""
    assert run_script(tmp_path, CLASSES + USES) == "all is well\n"


def test_of_the_cells_of_a_notebook(tmp_path):
    """The same in a Jupyter kernel; a class that a later cell defines anew is the new one."""
    again = "class Plain(Plain):\n    pass\n\nKINDS[0] = Plain\ncheck(parallel_map(make, range(4)))\n"
    with notebook(tmp_path) as run:
        for cell in (CLASSES, USES, again):
            run(cell)


def test_a_traceback_of_a_worker_names_the_script_and_shows_its_line(tmp_path):
    """Of methods, functions and functions inside these that a script defines, file and source line are shown."""
    printed = run_script(
        tmp_path,
        """
        import traceback
        from espnet3.parallel import BaseRunner, EnvironmentProvider, ItemError, set_parallel

        class Nothing(EnvironmentProvider):
            def build_env_local(self): return {}

        class Fails(BaseRunner):
            @staticmethod
            def forward(idx):
                return outer(idx)  # of the method

        def outer(x):
            def inner():
                raise LookupError(x)  # of the inner one
            return inner()  # of the function

        set_parallel({"env": "local", "n_workers": 2})
        try:
            Fails(Nothing(), progress=False)(range(4))
        except ItemError as error:
            print(error)
            traceback.print_exception(error, file=__import__("sys").stdout)
        """,
    )
    for line in ("# of the inner one", "# of the function", "# of the method"):
        assert line in printed, printed
    assert f'File "{tmp_path / "script.py"}", line' in printed and "<dynamic-code>" not in printed, printed
