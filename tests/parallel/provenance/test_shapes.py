"""Code that a result depends on without an import or a name that leads to it, and values from elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from espnet3.parallel.provenance.parts import changed_parts
from tests.parallel.provenance.package import ROOT, Package


def program(expression: str, before: str = "", after: str = "", attribute: str = "") -> str:
    """Return a program: what stands before the classes, what `forward` returns, and what follows."""
    text = ROOT.format(imports=before, calls=expression).replace(
        "\n\n\nif __name__", f"\n\n{after}\n\nif __name__"
    )
    return text.replace("class Runner(BaseRunner):\n", f"class Runner(BaseRunner):\n{attribute}")


FILTER = "class Filter:\n    def __init__(self, q): self.q = q\n    def update(self, k): return k * self.q\n"
REGISTRY = (
    "R = {}\n\ndef register(name, it=None):\n    def keep(one):\n        R[name] = one\n        return one\n"
)
REGISTRY += "    return keep if it is None else keep(it)\n"
WITH_A_BASE = (
    "class Base:\n    kinds = {}\n    def __init_subclass__(cls):\n        Base.kinds[cls.__name__] = cls\n"
)

# By what is edited: the files, with VALUE for what differs. Nothing that `forward` names leads to it.
EDITED: dict[str, dict[str, str]] = {
    "a function that a decorator registers": {
        "program": program("R['x']()", REGISTRY + "@register('x')\ndef f():\n    return VALUE")},
    "a function registered elsewhere": {
        "registry": REGISTRY,
        "program": program("R['x']()", "from registry import *\n@register('x')\ndef f():\n    return VALUE")},
    "a module imported for what it registers": {
        "registry": REGISTRY,
        "plugin": "import registry\n@registry.register('x')\ndef f():\n    return VALUE\n",
        "program": program("registry.R['x']()", "import registry\nimport plugin")},
    "a default that another module has, too": {
        "a": "def f(k=None): return k\n", "b": "def f(k=VALUE): return k\n",
        "program": program("[setattr, '', NO] and (a.f(), b.f())", "import a, b\nNO = None")},
    "a subclass of another module's class": {
        "base": "class B: pass\nclass C(B):\n    k = VALUE\n",
        "program": program("[one.k for one in base.B.__subclasses__()]", "import base")},
    "a subclass that its base notes": {
        "program": program("Base.kinds['X'].value", WITH_A_BASE + "class X(Base):\n    value = VALUE")},
    "an attribute set from outside": {"program": program("Runner.scale", after="setattr(Runner, 'scale', VALUE)")},
    "a submodule that another module imports": {
        "pkg/__init__": "", "pkg/a": "def f():\n    return VALUE\n", "other": "import pkg.a\n",
        "program": program("pkg.a.f()", "import pkg\nimport other")},
    "a file loaded by its path": {
        "helper": "def f():\n    return VALUE\n",
        "program": program("other.f()", "import importlib.util, os\nspec = importlib.util.spec_from_file_location("
                           "'other', os.path.join(os.path.dirname(__file__), 'helper.py'))\n"
                           "other = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(other)")},
    "a module found among those loaded": {
        "helper": "def f():\n    return VALUE\n",
        "program": program("sys.modules['helper'].f()", "import sys\nimport helper")},
    "a computed name of a module": {
        "helper": "def f1():\n    return VALUE\n", "program": program("getattr(helper, 'f' + '1')()", "import helper")},
    "a folder that is called site-packages": {
        "site-packages/helper": "def f():\n    return VALUE\n",
        "program": program("f()", "import sys\nfrom pathlib import Path\n"
                           "sys.path.insert(0, str(Path(__file__).parent / 'site-packages'))\nfrom helper import f")},
    "a module by a text of the function that calls the importer": {
        "nets": "class Net:\n    w = VALUE\n", "dyn": "import importlib\ndef find(path):\n"
        "    module, name = path.split(':')\n    return getattr(importlib.import_module(module), name)\n",
        "program": program("find('nets:Net').w", "from dyn import find\nimport nets")},
    "a module by a text in a table": {
        "nets": "def net():\n    return VALUE\n",
        "program": program("getattr(importlib.import_module(C['m']), C['f'])()",
                           "import importlib, nets\nC = {'m': 'nets', 'f': 'net'}")},
    "a table that items empty and fill": {
        "program": program("(C['k'], C.clear(), C.update(k=1))[0]", "C = {'k': VALUE}")},
    "an expression that names a module": {
        "nets": "def net():\n    return VALUE\n", "program": program("eval('nets.net()')", "import nets")},
    "a subclass that its base lists": {
        "base": "class Base:\n    pass\n", "nets": "from base import Base\nclass Net(Base):\n    w = VALUE\n",
        "program": program("[one.w for one in Base.__subclasses__()]", "from base import Base\nimport nets")},
    "a module of a package by a computed name": {
        "pkg/__init__": "from . import a\n", "pkg/a": "T = {'k': VALUE}\n",
        "program": program("getattr(pkg, 'a'[:1]).T['k']", "import pkg")},
    "a class of a module by a computed name": {
        "pkg/__init__": "", "pkg/enc": "class Big:\n    w = VALUE\n",
        "program": program("getattr(pkg.enc, 'B' + 'ig').w", "import pkg.enc")},
    "a module that is handed on by its package": {
        "pkg/__init__": "", "pkg/enc": "def build(): return VALUE\n",
        "program": program("made(pkg.enc)", "import pkg.enc\ndef made(one): return one.build()")},
    "which module a name is": {
        "n1": "def f():\n    return 1\n", "n2": "def f():\n    return 2\n",
        "program": program("net.f()", "import nVALUE as net")},
    "a list of classes of a module that a function imports": {
        "layers": "class A: pass\nclass B: pass\n",
        "program": program("late() or [one.__name__ for one in S]", "from layers import A, B\nS = [A, B][:VALUE]\n"
                           "def late():\n    import layers\n")},
    "which module has a function called add": {
        "n1": "def add(k):\n    return 1\n", "n2": "def add(k):\n    return 2\n",
        "program": program("net.add(1)", "import nVALUE as net")},
    "an object with a method called update": {
        "q": "Q = VALUE\n", "program": program("K.update(1)", f"from q import Q\n{FILTER}K = Filter(Q)")},
    "an object around a function, with a method called update": {
        "q": "Q = VALUE\n", "program": program("f(1)", f"from q import Q\n{FILTER}def make(one):\n"
                           "    def inner(k): return one.update(k)\n    return inner\nf = make(Filter(Q))")},
    "what an object begins with that items fill": {
        "tok": "class Tok:\n    def __init__(self, words): self.words = dict(words)\n    def of(self, word):\n"
               "        if word not in self.words: self.words[word] = 9\n        return self.words[word]\n"
               "T = Tok({'a': VALUE})\n",
        "program": program("[T.of('a'), T.of('b')]", "from tok import T")},
    "a class that only an annotation names": {
        "conf": "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import *\n"
                "@dataclass\nclass A:\n    k: int = VALUE\n@dataclass\nclass B:\n    a: Optional[A]\n",
        "program": program("get_args(get_type_hints(B)['a'])[0]().k", "from typing import *\nfrom conf import B")},
    "a parameter of a generic base": {
        "lib": "from typing import *\nT = TypeVar('T')\nclass A(Generic[T]): pass\nclass K1: k = 1\nclass K2: k = 2\n"
               "class Net(A[KVALUE]): pass\n",
        "program": program("get_args(Net.__orig_bases__[0])[0].k", "from typing import get_args\nfrom lib import Net")},
    "the base of a class that a function makes": {
        "lib": "def over(base):\n    class New(base): pass\n    return New\nclass A: k = 1\nclass B: k = 2\n"
               "N = [over(A), over(B)]\nM = N[:VALUE][-1]\n",
        "program": program("M().k", "from lib import M, N")},
    "a method that hides a sibling's": {
        "lib": "class Mix:\n    def goVALUE(self): return 2\nclass Base:\n    def go1(self): return 1\n"
               "class Net(Mix, Base): pass\n",
        "program": program("getattr(Net(), 'go' + '1')()", "from lib import Net")},
    "a branch that only a program does not run": {
        "helper": "if __name__ != '__main__':\n    def f():\n        return VALUE\n",
        "program": program("f()", "from helper import f")},
}  # fmt: skip
# how Hydra and Python's own help find a class by name
FINDERS = {"get_class": "from hydra.utils import get_class", "hydra.utils.get_class": "import hydra.utils",
    "utils.get_class": "from hydra import utils", "p.locate": "import pydoc as p"}  # fmt: skip
# Modules that are imported by a name made at run time. By what `forward` returns: which of them is edited.
_TO, _LOOP = (
    "import importlib\n",
    "R = {{}}\nfor one in {}:\n    importlib.import_module(f'{{__name__}}.{{{}}}')\n",
)
_F = "def f(): return VALUE\n"
PLACES = {
    **{f"{one}/__init__": "" for one in ("zoo", "zoo/enc", "zoo/b", "lib")},
    **dict.fromkeys(["zoo/a", "zoo/enc/a", "zoo/b/net", "lazy/a", "alone"], _F),
    **{f"{one}/a": f"from {one} import R\n{_F}R['f'] = f\n" for one in ("every", "listed")},
    "every/__init__": f"import pkgutil\n{_TO}{_LOOP.format('pkgutil.iter_modules(__path__)', 'one.name')}",
    "listed/__init__": f"import os\n{_TO}{_LOOP.format('os.listdir(__path__[0])', 'one[:-3]')}".replace(
        "    imp", "    if one[:1] != '_': imp"),
    "lazy/__init__": f"{_TO}def __getattr__(name): return importlib.import_module('.' + name, __name__)\n",
    "lib/get": f"{_TO}def get(name): return importlib.import_module(f'zoo.{{name}}')\n",
    "lib/of": f"{_TO}def of(name): return importlib.import_module(name)\n",
}  # fmt: skip
NAMED = {"import_module('zoo.%s' % N)": "zoo/a", "import_module('zoo.{}'.format(N))": "zoo/a",
    "import_module('.' + N, 'zoo')": "zoo/a", "import_module(f'zoo.{K}.{N}')": "zoo/enc/a",
    "import_module(f'zoo.{M}.net')": "zoo/b/net", "import_module('.'.join(['zoo', N]))": "zoo/a",
    "import_module(zoo.__name__ + '.' + N)": "zoo/a", "import_module('zoo.' + 'A'.lower())": "zoo/a",
    "lazy.a": "lazy/a", "get('a')": "zoo/a", "of('alone')": "alone"}  # fmt: skip
NAMED |= {f"type('T', (), {one}_())": f"{one}/a" for one in ("every", "listed")}
BEFORE = (
    "import lazy, zoo\nfrom importlib import import_module\nfrom lib.get import get\nfrom lib.of import of\n"
)
BEFORE += "K, M, N = 'enc', 'b', 'a'\n"
BEFORE += "".join(f"def {one}_():\n    import {one}\n    return {one}.R\n" for one in ("every", "listed"))
EDITED |= {
    one: {key: text if key == edited else text.replace("VALUE", "0") for key, text in PLACES.items()}
    | {"program": program(f"{one}.f()", BEFORE)}
    for one, edited in NAMED.items()
}
NET = "class Net:\n    w = VALUE\n"
EDITED |= {
    one: {"nets": NET, "program": program(f"{one}('nets.Net').w", how)} for one, how in FINDERS.items()
}


def test_a_package_that_links_to_itself_is_looked_into_once(package: Package) -> None:
    """Where a name is made at run time, links of a package to itself end the look for what it may mean."""
    names = "latest, current = 'latest', 'current'\nfrom importlib import import_module"
    package.write("program", program("import_module('zoo.' + latest + current)", names))
    package.write("zoo/__init__", "")
    for name, to in (("latest", "."), ("current", "../zoo")):
        (package.folder / "zoo" / name).symlink_to(to)
    assert {"program", "zoo"} <= package.code().keys()


def test_a_folder_of_data_that_is_listed_leads_to_no_module(package: Package) -> None:
    """Modules beside count by their names alone where code that imports by a name lists some other folder."""
    lists = "import importlib, os\ndef f(name): return os.listdir('wav') and importlib.import_module(name)"
    package.write("program", program("f('json')", lists))
    package.write("plots", NET)
    assert not [one for one in package.code() if "plots" in one]


def test_a_method_of_the_same_name_imports_nothing(package: Package) -> None:
    """Only a library's `get_class` leads to each module that some text names, not that of a table of the user's."""
    table = "class Table:\n    def get_class(self, name):\n        return {'a': int}[name]\n"
    package.write("program", program("(Table().get_class('a'), 'nets.Net')[0](1)", table))
    package.write("nets", NET)
    assert not [one for one in package.code() if "nets" in one]


@pytest.mark.parametrize("files", EDITED.values(), ids=EDITED)
def test_code_that_is_reached_by_no_name_counts(package: Package, files: dict[str, str]) -> None:
    """An edit of what tables, decorators, bases or reflection lead to is noticed; the same text is no edit."""
    found = []
    for value in ("1", "1", "2"):
        for name, text in files.items():
            package.write(name, text.replace("VALUE", value))
        found.append(package.code(run=value == "1"))
    assert changed_parts(found[0], found[1]) == []
    assert changed_parts(found[1], found[2]) != []


def test_a_module_that_is_added_where_a_package_lists_its_modules_is_noticed(package: Package) -> None:
    """A package that imports all that it finds in its folder is another one with another module."""
    package.write("program", program("late()", "def late():\n    import every\n    return every.R\n"))
    package.write("every/__init__", PLACES["every/__init__"])
    package.write("every/a", "from every import R\nR['a'] = 1\n")
    before = package.code()
    assert changed_parts(before, package.code()) == []
    package.write("every/b", "from every import R\nR['a'] = 2\n")
    said = "__init__.py: the list of modules of every has changed"
    assert changed_parts(before, package.code()) == [f"{package.folder}/every/{said}"]


def test_parsed_arguments_of_another_module_count_as_far_as_they_are_read(package: Package) -> None:
    """An argument that no code reads may differ, wherever the arguments are kept."""
    package.write("program", program("hp.beam", "from options import hp"))
    found = []
    for beam, other in ((1, 1), (1, 2), (2, 2)):
        package.write("options", f"import argparse\nhp = argparse.Namespace(beam={beam}, other={other})\n")
        found.append(package.code())
    assert changed_parts(found[0], found[1]) == []
    assert changed_parts(found[1], found[2]) != []


@dataclass
class Settings:
    """Names a class as a structured config does."""

    _target_: str = "nets.Net"


@pytest.mark.parametrize(
    "kept",
    [dict, SimpleNamespace, lambda **known: MappingProxyType(known), lambda **known: [{"deep": known}]],
    ids=["dict", "namespace", "proxy", "list"],
)
def test_targets_count_in_any_container(package: Package, kept: Callable[..., Any]) -> None:
    """A class that is named under `_target_` is found in whatever the config is made of."""
    package.write("program", program("1"))
    found = []
    for net in (kept(_target_="nets.Net"), kept(inner=Settings())):
        for value in (1, 2):
            package.write("nets", f"class Net:\n    w = {value}\n")
            found.append(package.code({"config": net}))
        (line,) = changed_parts(found[-2], found[-1])
        assert line.startswith(f"{package.folder}/nets.py: ")
