"""An edit while a run goes on: no process of the run computes with other code than the one that began it."""

import json
import textwrap
from pathlib import Path

import pytest

from espnet3.parallel import ChangedRunError, ConfigError
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from tests.habits import rows
from tests.parallel.durable.test_edited_code import start as started

HELPER = "import functools\n\nBY = 1\n\n@functools.cache\ndef shift(x):\n    return x + 1 * BY\n"
EDITED = {"function": HELPER.replace("x + 1", "x + 10"), "constant": HELPER.replace("BY = 1", "BY = 10")}
HEAD = """
import importlib, os, signal, sys, time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client, set_parallel

EDITED = os.environ.get("EDITED", "")

class Nothing(EnvironmentProvider):
    def build_env_local(self):
        return {}

def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def edit():
    Path("helper.py").write_text(EDITED)

def wait_for(name):
    end = time.monotonic() + 120
    while not os.path.exists(name) and time.monotonic() < end:
        time.sleep(0.05)  # another process makes the file

def run(items, folder="out"):
    return list(Shifted(Nothing(), output_dir=folder, progress=False)(items))
"""
RUN = """

class Shifted(BaseRunner):
    @staticmethod
    def forward(idx):
        {body}

if __name__ == "__main__":
    try:
        {main}
    except Exception as error:
        print(type(error).__name__, error)
"""


def program(body: str, main: str, imports: str = "import helper") -> str:
    """Return a program of a runner: what `forward` does, and what is done with it."""
    body, main = (textwrap.indent(textwrap.dedent(text).strip(), " " * 8).strip() for text in (body, main))
    return f"{imports}\n{HEAD}{RUN.format(body=body, main=main)}"


def start(folder: Path, text: str, edited: str, helper: str = HELPER) -> str:
    """Run a program that edits its helper meanwhile; return what it printed."""
    return started(folder, text, helper, EDITED=edited)


def results(folder: Path) -> dict[int, int]:
    """Return what a run folder holds, by index."""
    lines = [line for file in folder.glob("split.*/results.jsonl") for line in file.read_text().splitlines()]
    return {line["index"]: line["result"] for line in map(json.loads, lines)}


BY_TWO = 'set_parallel({"env": "local", "n_workers": 2})\nprint(run(range(30)))'
KILLED = """
if idx == 3 and once("killed"):
    edit()
    os.kill(os.getpid(), signal.SIGKILL)
if os.path.exists("killed"):
    wait_for("never")  # until the driver, which has been told by the worker in its place, ends this one
return helper.shift(idx)
"""
RELOADED = """
with get_client({"env": "local", "n_workers": 1}):
    print(run(range(3), "before"))
    edit()
    importlib.reload(helper)
    print(run(range(3)))
"""
LAZY = """
if idx == 0:
    edit()
from helper import shift
return shift(idx)
"""
JOINED = """
if idx == 3:
    wait_for("never")  # until the driver, which has been told by the worker that joined, ends this one
return helper.shift(idx)
"""
ADAPTED = """
with get_client({"env": "local", "n_workers": 1}) as client:
    print(run(range(3)))
    edit()
    client.cluster.scale(2)
    client.wait_for_workers(2)
    print(run(range(3, 30), "out2"))
"""
# By how a process comes to load another helper than the driver.
WAYS = {
    "a worker in place of a killed one": program(KILLED, BY_TWO),
    "a client that stays open, and a reload": program("return helper.shift(idx)", RELOADED),
    "workers that join later": program(JOINED, ADAPTED),
    "an import by items of workers": program(LAZY, BY_TWO, ""),
    "an import by items of this process": program(LAZY, "print(run(range(30)))", ""),
}


@pytest.mark.parametrize(
    ("way", "edit"),
    rows(
        [(way, edit) for way in WAYS for edit in EDITED],
        [(way, [*EDITED][number % 2]) for number, way in enumerate(WAYS)],
    ),
)
def test_a_process_with_other_code_is_refused(way: str, edit: str, tmp_path: Path) -> None:
    """The error names the file, and the folder holds no result of the other code."""
    said = start(tmp_path, WAYS[way], EDITED[edit]).splitlines()[-1]
    assert said.startswith("ConfigError") and f"{tmp_path / 'helper.py'}: " in said, said
    assert all(result == index + 1 for index, result in results(tmp_path / "out").items())
    assert all(result == index + 1 for index, result in results(tmp_path / "out2").items())


@pytest.mark.parametrize(("edit", "part"), [("function", "shift"), ("constant", "the value of BY")])
def test_workers_that_start_after_an_edit_are_refused(edit: str, part: str, tmp_path: Path) -> None:
    """What the driver has loaded counts from the first worker on, and nothing is computed with the other code."""
    said = start(tmp_path, program("return helper.shift(idx)", f"edit()\n{BY_TWO}"), EDITED[edit])
    assert said.startswith("ConfigError") and f"{tmp_path / 'helper.py'}: {part} has changed" in said
    assert results(tmp_path / "out") == {}


@pytest.mark.parametrize("name", ["BY", "STEP"])
def test_workers_that_take_another_constant_by_its_name_are_refused(name: str, tmp_path: Path) -> None:
    """A constant that a module has by `from step import BY` counts with the file that sets it."""
    (tmp_path / "step.py").write_text(f"{name} = 1\n")
    main = f"Path('step.py').write_text('{name} = 10')\n{BY_TWO}"
    helper = HELPER.replace("BY = 1", f"from step import {name} as BY")
    said = start(tmp_path, program("return helper.shift(idx)", main), "", helper).splitlines()[-1]
    assert (
        said.startswith("ConfigError") and f"{tmp_path / 'step.py'}: the value of {name} has changed" in said
    )


# By what the script does to a module beside it, which workers do not run: what the module defines, and what is done.
DONE_TO_IT = {
    "a constant": ("BY = 1", "helper.BY = 2"),
    "a table": ("T = {'k': 0}", "helper.T.update(k=1)"),
    "an empty list": ("H = []", "helper.H.append(len)"),
    "a method": ("class A:\n    def f(self):\n        return 0", "helper.A.f = lambda self: 1"),
    "a function": ("def f():\n    return 0", "helper.f = lambda: 1"),
}
USED = {"A": "A().f()", "f": "f()", "H": "len(H)", "T": "T['k']", "BY": "BY"}


@pytest.mark.parametrize(("defined", "done"), DONE_TO_IT.values(), ids=DONE_TO_IT)
def test_workers_without_what_the_script_has_done_are_refused(
    defined: str, done: str, tmp_path: Path
) -> None:
    """They would compute something else; the error says where to do it, and one worker goes on."""
    used = USED[done.removeprefix("helper.")[:2].strip(" .=")]
    helper = f"{defined}\ndef shift(x):\n    return x + {used}\n"
    text = program("return helper.shift(idx)", BY_TWO, f"import helper\n{done}")
    said = start(tmp_path, text, "", helper).splitlines()[-1]
    assert said.startswith("ConfigError") and "set it in its module, or in build_env_local" in said, said
    assert start(tmp_path, text.replace('"n_workers": 2', '"n_workers": 1'), "", helper).startswith("[")


# By what the script does to settings in a module beside it
SETTINGS = {
    "an object": ("class C:\n    def __init__(self):\n        self.beam = 5\ncfg = C()", "helper.cfg.beam = 7"),
    "a namespace in a dict": (
        "from types import SimpleNamespace as S\nALL = {'dec': S(beam=5)}\ndef f(): return ALL\ncfg = ALL['dec']",
        "helper.ALL['dec'].beam = 7"),
    "a place for one": ("class C: beam = 7\ncfg = None\ndef f(): return cfg or C()", "helper.cfg = helper.C()"),
    "a config": ("from omegaconf import OmegaConf\ncfg = OmegaConf.create({'beam': 5})", "helper.cfg.beam = 7"),
}  # fmt: skip


@pytest.mark.parametrize(("defined", "done"), SETTINGS.values(), ids=SETTINGS)
def test_workers_with_other_settings_than_the_script_has_made_say_so(
    defined: str, done: str, tmp_path: Path
) -> None:
    """Settings of a module that the script changes are the old ones in workers: a warning names module and variable."""
    helper = f"def f(): pass\n{defined}\ndef shift(x):\n    return x * getattr(cfg, 'beam', 5), f()\n"
    for change, warns in ((done, True), ("pass", False)):
        text = program(
            "return helper.shift(idx)[0]", BY_TWO.replace("out", f"{warns}"), f"import helper\n{change}"
        )
        text = f"import sys\nsys.stderr = sys.stdout\n{text}".replace('folder="out"', f'folder="{warns}"')
        said = start(tmp_path, text, "", helper)
        assert (f"{tmp_path / 'helper.py'}: the value of" in said) is warns, said


def test_workers_import_what_registers_itself(tmp_path: Path) -> None:
    """A module that the script imports may fill a table of another one, and put a method there."""
    helper = "T = []\nclass A:\n    def f(self):\n        return 0\ndef shift(x):\n    return x + len(T) + A().f()\n"
    extra = "import helper\ndef f(self):\n    return 1\nhelper.T.append(f)\nhelper.A.f = f\n"
    (tmp_path / "extra.py").write_text(extra)
    text = program("return helper.shift(idx)", BY_TWO, "import helper, extra")
    assert start(tmp_path, text, "", helper).startswith(str([*range(2, 32)]))


REWRITTEN = """
import ast, inspect, textwrap

READY = False

def checked(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree.body[0].decorator_list = []
    tree.body[0].body.insert(0, ast.parse("assert __name__").body[0])
    made = {}
    exec(compile(ast.fix_missing_locations(tree), __file__, "exec"), globals(), made)
    return made[function.__name__]

@checked
def shift(x):
    global READY
    READY = READY or x >= 0
    return x + 1
"""
IMPORTED_BY_ITEMS = "from helper import shift\nreturn shift(idx)"


@pytest.mark.parametrize("imports", ["import helper", ""], ids=["imported before", "imported by items"])
def test_code_that_its_own_decorators_and_items_change_is_accepted(imports: str, tmp_path: Path) -> None:
    """A function that a decorator compiles anew, as typeguard does, and a flag that items set, are no edit."""
    main = (
        'print(run(range(4)))\nset_parallel({"env": "local", "n_workers": 2})\nprint(run(range(6), "out2"))'
    )
    text = program(IMPORTED_BY_ITEMS, main, imports)
    expected = ["[1, 2, 3, 4]", "[1, 2, 3, 4, 5, 6]"]
    for _ in range(2):  # the second one resumes
        assert start(tmp_path, text, "", REWRITTEN).splitlines() == expected


SUBMITTED = """
set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 2, "snapshot": SNAPSHOT}})
Shifted(Nothing(), output_dir="out", async_mode=True, progress=False, on_error="record")(range(4))
"""
EDITS_AT_ONE = """
if idx == 1 and once("edited"):
    edit()
    import os, signal
    os.kill(os.getpid(), signal.SIGUSR1)  # another job takes the next shard
return helper.shift(idx)
"""


@pytest.mark.parametrize(
    ("later", "edit"),
    rows(
        [(later, edit) for later in ("copied", "taken back", "forced") for edit in EDITED],
        [("copied", "function"), ("taken back", "constant"), ("forced", "function")],
    ),
)
def test_a_job_that_starts_after_an_edit(
    later: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a copy of the code a later job is refused, and `status`, `retry` and the job name the file."""
    snapshot = str(later == "copied")
    start(tmp_path, program(EDITS_AT_ONE, SUBMITTED.replace("SNAPSHOT", snapshot)), EDITED[edit])
    run = DetachedRun.open(tmp_path / "out")
    status = run.wait(200)
    assert (tmp_path / "edited").exists()
    if later == "copied":
        assert status.done and not status.notes and list(run.merge()) == [1, 2, 3, 4]
        return
    named = f"{tmp_path / 'helper.py'}: "
    assert not status.done and any(named in note for note in status.notes)
    assert any(named in (shard.note or "") for shard in status.shards)
    assert results(tmp_path / "out") == {0: 1, 1: 2}
    with pytest.raises(ChangedRunError, match=r"helper\.py: .*has changed"):
        run.retry()
    if later == "forced":
        monkeypatch.setenv("ESPNET3_RESUME", "force")
    else:
        (tmp_path / "helper.py").write_text(HELPER)
    run.retry()
    assert run.wait(200).done
    assert list(run.merge()) == [1, 2, *((12, 13) if later == "forced" else (3, 4))]


def test_a_copy_has_the_whole_of_a_package(tmp_path: Path) -> None:
    """A module of it that only items import is the copied one, too."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    (tmp_path / "mine/late.py").write_text("SHIFT = 1")
    body = "Path('mine/late.py').write_text('SHIFT = 10')\nfrom mine.late import SHIFT\nreturn idx + SHIFT"
    start(tmp_path, program(body, SUBMITTED.replace("SNAPSHOT", "True"), "import mine"), "")
    run = DetachedRun.open(tmp_path / "out")
    assert run.wait(200).done and list(run.merge()) == [1, 2, 3, 4]


MERGED = """
if sys.argv[1:]:
    from espnet3.parallel import DetachedRun
    print(DetachedRun.open("out").merge())
else:
    set_parallel({"env": "local", "n_workers": 1, "detached": {"snapshot": False}})
    Shifted(Nothing(), output_dir="out", async_mode=True, progress=False)(range(2)).wait(200)
"""


def test_a_merge_with_other_code_is_refused(tmp_path: Path) -> None:
    """Edited after the items were done: what `merge` calls is not what the items were computed with."""
    text = program("return helper.shift(idx)", MERGED).replace(
        "    @staticmethod",
        "    def merge(self, shard_dirs):\n        return helper.shift(0)\n\n    @staticmethod",
        1,
    )
    start(tmp_path, text, "")
    said = started(tmp_path, text, EDITED["function"], "program.py", "merge")
    assert said.startswith("ConfigError") and f"{tmp_path / 'helper.py'}: shift has changed" in said
    assert started(tmp_path, text, HELPER, "program.py", "merge") == "1"


def test_code_that_was_edited_before_the_submission_is_refused(tmp_path: Path) -> None:
    """A run folder holds the submitter's loaded code: jobs of another text do not belong to the run."""
    main = "edit()\n" + SUBMITTED.replace("SNAPSHOT", "True")
    said = start(tmp_path, program("return helper.shift(idx)", main), EDITED["function"])
    assert said.startswith(ConfigError.__name__) and f"{tmp_path / 'helper.py'}: shift" in said
    assert not (tmp_path / "out").exists()


CHANGING = """
from tables import MODE, TABLE
table, tables.MODE = TABLE, str(idx)
table[idx] = idx
return idx
"""


def test_what_items_have_changed_in_a_worker_is_no_other_code(tmp_path: Path) -> None:
    """Workers that stay may have changed a constant and a table of a module; their next run goes on."""
    (tmp_path / "tables.py").write_text('MODE = "a"\nTABLE = {"k": 1}\n')
    twice = 'set_parallel({"env": "local", "n_workers": 2})\nprint(run(range(4)), run(range(4), "out2"))'
    said = start(tmp_path, program(CHANGING, twice, "import tables"), "")
    assert said.splitlines()[-1] == f"{[0, 1, 2, 3]} {[0, 1, 2, 3]}"
