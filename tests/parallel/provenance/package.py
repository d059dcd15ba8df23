"""A package of the user's that tests write and edit."""

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from espnet3.parallel.provenance.parts import Code
from espnet3.parallel.provenance.reach import code_of

ROOT = """
from espnet3.parallel import BaseRunner, EnvironmentProvider
{imports}

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {{}}


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return {calls}


if __name__ == "__main__":
    Runner(Provider())(range(3))
"""


class Package:
    """A package of the user's that can be edited; nothing of it stays imported between two looks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))

    def write(self, name: str, text: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def load(self, name: str = "program") -> ModuleType:
        """Import a module as a fresh process would."""
        self.forget()
        spec = importlib.util.spec_from_file_location(name, self.folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def forget(self) -> None:
        """Drop what was imported from here."""
        for name, module in list(sys.modules.items()):
            held = vars(module)
            files = [held.get("__file__"), *(held.get("__path__") or ())]
            if any(str(file).startswith(str(self.folder)) for file in files):
                del sys.modules[name]
        importlib.invalidate_caches()

    def code(self, config: Any = None, run: bool = False) -> Code:
        """Return the code of the program's runner and provider, where wanted after an item has run."""
        module = self.load()
        if run:
            module.Runner.forward(0)
        return code_of([module.Runner, module.Provider], config)[0]
