"""`espnet3-parallel overlay TREE`: the installed layer in a checkout of ESPnet, as links; none of its files changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import click

from espnet3_parallel.layer import DISTRIBUTION, ROOT, installed

# A checkout has these; the second is what our package of the same name hides.
_EXPECTED = ("espnet3/__init__.py", "espnet3/parallel/base_runner.py")


def lay(tree: Path) -> list[Path]:
    """Link every module and room of the installed layer into a checkout; links of an earlier call are renewed.

    The links point into the environment of this Python: with it gone, the checkout's own layer is back.
    """
    for name in _EXPECTED:
        if not (tree / name).is_file():
            raise click.ClickException(f"{tree} is not a checkout of ESPnet: it has no {name}")
    parts = _parts()
    taken = [part for part in parts if not (tree / part).is_symlink() and (tree / part).exists()]
    if taken:
        raise click.ClickException(
            f"{tree} has files of its own where a link would go, and nothing was changed: {', '.join(map(str, taken))}"
        )
    remove(tree)  # those of an older version may have other names
    for part in parts:
        link = tree / part
        link.unlink(missing_ok=True)  # one into another environment
        link.symlink_to(ROOT / part)
    return [tree / part for part in parts]


def remove(tree: Path) -> list[Path]:
    """Take away the links that `lay` made, and return them."""
    links = [
        path
        for path in sorted((tree / "espnet3" / "parallel").iterdir())
        if path.is_symlink() and ROOT in Path(os.readlink(path)).parents
    ]
    for link in links:
        link.unlink()
    return links


def _parts() -> list[PurePosixPath]:
    if not (ROOT / "espnet3" / "parallel" / "base_runner").is_dir():
        raise click.ClickException(
            f"{ROOT} holds the layer as a checkout does; only its wheel has the packages that are found before "
            "modules of the same name: pip install . in that checkout, without --editable"
        )
    found = installed(DISTRIBUTION)
    files = (found.files if found else None) or []
    inside = {PurePosixPath(*file.parts[:3]) for file in files if file.parts[0] == "espnet3"}
    parts = {part for part in inside if part.name != "__pycache__"}
    return sorted(parts - {PurePosixPath("espnet3/parallel/__init__.py")})


@click.command()
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--remove", "away", is_flag=True, help="Take the links away again.")
def overlay(tree: Path, away: bool) -> None:
    """Use the installed layer in TREE, a checkout of ESPnet: links beside its files, none of which changes."""
    try:
        links = remove(tree) if away else lay(tree)
    except (click.ClickException, OSError) as error:
        # click's own words are not escaped for a terminal of ASCII
        print(error, file=sys.stderr)
        sys.exit(1)
    if away:
        print(f"{len(links)} links removed; {tree} uses its own espnet3.parallel again")
        return
    print(f"{len(links)} links in {tree / 'espnet3'} point into {ROOT}; no file there has changed")
    print(f"to undo: espnet3-parallel overlay --remove {tree}")
