"""What the wheel of `espnet3-parallel` does beyond pyproject.toml: it lives beside ESPnet's own files.

The distribution `espnet` owns five files of ours by name: `espnet3/parallel/__init__.py`, `base_runner.py`,
`env_provider.py`, `inference_provider.py` and `parallel.py`. Whichever of the two is installed last overwrites
the other's, and either's removal deletes them for both. So the wheel shares as little as it can:

- the four modules become packages of one file. Python finds a package before a module of the same name in the same
  folder (PEP 420), so ours are imported in both orders of installation, and no file of theirs is touched;
- `espnet3/__init__.py` is left out: `espnet3` is a namespace package without ESPnet, and ESPnet's package with it;
- `espnet3/parallel/__init__.py` alone is in both. Theirs is a docstring. Where it won, `from espnet3.parallel
  import NAME` looks for a module of that name, so the wheel has one for each public name.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = "espnet3.parallel"
SHARED = ("base_runner", "env_provider", "inference_provider", "parallel")

RUN_AS_MODULE = '''"""`python -m espnet3.parallel.base_runner SPEC`: a detached job."""

import sys

from espnet3.parallel.worker import main

sys.exit(main())
'''

PUBLIC_NAME = '''"""`from espnet3.parallel import {name}` where its `__init__.py` is another distribution's."""

import sys

from espnet3.parallel.{home} import {name}

sys.modules[__name__] = {name}
'''


class BuildBesideEspnet(build_py):
    """Lay out the wheel as the module's docstring says; a development install has the files as they are."""

    def run(self) -> None:
        """Copy all modules, then write those that only the wheel has."""
        super().run()
        if not self.editable_mode:
            for path, text in self._only_in_the_wheel().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that a build makes."""
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, *map(str, self._only_in_the_wheel())]

    def get_module_outfile(self, build_dir: str, package: list[str] | tuple[str, ...], module: str) -> str:
        """Return where a module goes: one that ESPnet has too becomes a package."""
        if ".".join(package) == PACKAGE and module in SHARED and not self.editable_mode:
            package, module = [*package, module], "__init__"
        return str(super().get_module_outfile(build_dir, package, module))

    def _only_in_the_wheel(self) -> dict[Path, str]:
        folder = Path(self.build_lib, *PACKAGE.split("."))
        # the table is plain data, and importing that file loads nothing else of the package
        table = runpy.run_path(str(Path(__file__).parent / "espnet3" / "parallel" / "__init__.py"))
        texts = {
            folder / f"{name}.py": PUBLIC_NAME.format(name=name, home=home)
            for name, home in table["_MODULE_OF"].items()
        }
        return {**texts, folder / "base_runner" / "__main__.py": RUN_AS_MODULE}


setup(cmdclass={"build_py": BuildBesideEspnet})
