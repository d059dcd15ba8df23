"""A copy of the user's code, so that later edits do not reach jobs that have not started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.detached.code import ClassRef
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.files import make_folder

MOST = 64 << 20  # bytes: more than this is no code
_CODE = (".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".txt")


def snapshot(spec: JobSpec, folder: Path) -> JobSpec:
    """Copy the code of the runner and the provider, and let a spec's jobs use the copy.

    Copied are the scripts beside them, the modules of their folders that are loaded here, and the whole of
    their packages, without files that are no code. Other entries of `sys.path` are used where they are.
    """
    make_folder(folder)
    roots = {root: folder / str(number) for number, root in enumerate(sorted(_roots(spec)))}
    size = 0
    for root, copy in roots.items():
        for file in _code(root):
            size += file.stat().st_size
            if size > MOST:
                raise ConfigError(f"detached.snapshot: the code in {root} is more than {MOST >> 20} MB")
            target = copy / file.relative_to(root)
            make_folder(target.parent / "__pycache__")  # jobs would make it by the umask
            shutil.copy2(file, target)
            target.chmod(target.stat().st_mode & 0o700)
    places = {str(root): str(copy) for root, copy in roots.items()}
    path = [place for entry in spec.surroundings.sys_path for place in _with_copy(entry, places)]
    surroundings = replace(
        spec.surroundings, sys_path=[*(p for p in places.values() if p not in path), *path]
    )
    return replace(
        spec,
        runner=_moved(spec.runner, roots),
        provider=_moved(spec.provider, roots),
        surroundings=surroundings,
    )


def _with_copy(entry: str, places: dict[str, str]) -> list[str]:
    copy = places.get(str(Path(entry).resolve()))
    return [entry] if copy is None else [copy, entry]


def root_of(ref: ClassRef) -> Path:
    """Return the folder that a class's module is imported from."""
    file = Path(ref.file).resolve()
    depth = 0 if ref.script else ref.module.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def _roots(spec: JobSpec) -> set[Path]:
    installed = [Path(entry).resolve() for entry in sys.path if "site-packages" in entry]
    roots = {root_of(spec.runner), root_of(spec.provider)}
    return {root for root in roots if root not in installed}


def _code(root: Path) -> Iterator[Path]:
    """Yield the files to copy: beside a root its loaded modules and scripts, and all of loaded packages."""
    tops = set()
    for module in list(sys.modules.values()):
        file = own_attribute(module, "__file__")
        if isinstance(file, str) and (path := Path(os.path.realpath(file))).is_relative_to(root):
            tops.add(path.relative_to(root).parts[0])
    for top in sorted(tops):
        place = root / top
        if place.is_file():
            yield place
        elif (place / "__init__.py").exists() or any(place.glob("*.py")):
            for file in sorted(place.rglob("*")):
                if file.is_file() and file.suffix in _CODE and "__pycache__" not in file.parts:
                    yield file


def _moved(ref: ClassRef, roots: dict[Path, Path]) -> ClassRef:
    root = root_of(ref)
    copy = roots.get(root)
    if copy is None:
        return ref
    return replace(ref, file=str(copy / Path(ref.file).resolve().relative_to(root)))
