"""Code that was typed into a notebook or a terminal: which edits are noticed."""

import json
import os
import subprocess
import sys

from tests.parallel.provenance import cases

# Run from standard input: its __main__ has no file, as that of a notebook. It prints the rows that fail.
PROGRAM = """
import json, os
from espnet3.parallel.provenance import parts, reach

def typed(text):
    exec(text, globals())
    return reach.code_of([R, P], {"config": {"net": {"_target_": "__main__.Net"}}})[0]

for _name, (_text, _before, _after) in json.loads(os.environ["ROWS"]).items():
    _first = typed(_text.replace("VALUE", _before))
    try: R.forward(0)
    except AttributeError: pass
    _again, _other = typed(_text.replace("VALUE", _before)), typed(_text.replace("VALUE", _after))
    if parts.changed_parts(_first, _again) or not parts.changed_parts(_again, _other):
        print(_name, parts.changed_parts(_first, _again))
"""

TYPED = {
    "a setter": (
        "class A:\n    @property\n    def m(self): return 1\n    @m.setter\n    def m(self, v): self.x = VALUE",
        "setattr(A(), 'm', 1)"),
    "a cached property": ("class A:\n    @functools.cached_property\n    def m(self): return VALUE", "A().m"),
    "a partial function of the same name": ("def f(x): return VALUE\nf = functools.partial(f, 1)", "f()"),
    "a name that eval reads": ("Z = VALUE", "eval('Z')"),
    "a registered function": (
        "T = {}\ndef keep(f):\n    T['f'] = f\n    return f\n@keep\ndef f(): return VALUE", "T['f']()"),
    "a class that the config names": ("class Net: w = VALUE", "1"),
}  # fmt: skip


def test_an_edit_of_what_was_typed_is_noticed() -> None:
    """What a typed function reaches counts, under whatever a decorator has made of it; typed again it is the same."""
    rows = {name: (cases.program(*text), "1", "2") for name, text in TYPED.items()}
    # of a variable that a function sets the statement counts, and what was typed is in no file
    in_files = ("helper", "global ")
    others = cases.EDITED.items()
    rows |= {name: row for name, row in others if not any(one in row[0] for one in in_files)}
    env = {**os.environ, "ROWS": json.dumps(rows)}
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, capture_output=True, text=True, env=env, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0), (done.stdout, done.stderr)
