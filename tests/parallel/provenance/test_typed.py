"""Code that was typed into a notebook or a terminal: which edits are noticed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Run from standard input: its __main__ has no file, as that of a notebook. VALUE is what is edited.
PROGRAM = """
import sys
from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.provenance.reach import code_of
from espnet3.parallel.provenance.record import changed_parts

class Provider(EnvironmentProvider):
    def build_env_local(self): return {{}}

def typed(value):
    exec({text!r}.replace("VALUE", value), globals())
    exec("class Runner(BaseRunner):\\n    @staticmethod\\n    def forward(idx): return " + {expression!r}, globals())
    return code_of([Runner, Provider], {config!r})[0]

first = typed("1")
try: Runner.forward(0)
except AttributeError: pass
again, other = typed("1"), typed("2")
print(bool(changed_parts(first, again)), bool(changed_parts(again, other)))
"""

TYPED = {
    "a cached function": ("import functools\n@functools.lru_cache\ndef f(x): return VALUE", "f(idx)"),
    "a function of a single dispatch": (
        "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return VALUE",
        "f(idx)",
    ),
    "a subclass that is looked for": (
        "class B: pass\nclass X(B): v = VALUE",
        "[one.v for one in B.__subclasses__()]",
    ),
    "a name that eval reads": ("Z = VALUE", "eval('Z')"),
    "a registered function": (
        "T = {}\ndef keep(f):\n    T['f'] = f\n    return f\n@keep\ndef f(): return VALUE",
        "T['f']()",
    ),
    "a class that the config names": ("class Net: w = VALUE", "1"),
}


@pytest.mark.parametrize(("text", "expression"), TYPED.values(), ids=TYPED)
def test_an_edit_of_what_was_typed_is_noticed(text: str, expression: str) -> None:
    """What a typed function reaches counts, under whatever a decorator has made of it; typed again it is the same."""
    config = {"config": {"net": {"_target_": "__main__.Net"}}} if "Net" in text else None
    program = PROGRAM.format(text=text, expression=expression, config=config)
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", (done.stdout, done.stderr)
