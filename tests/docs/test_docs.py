"""The pages say what is so: their code runs, their tables and links are right."""

import inspect
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import cases
from benchmarks.systems import SYSTEMS
from espnet3.parallel import errors
from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.ledger import errors as ledger_errors
from tests.parallel.contract.helpers import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```(\w*)$")
_EXPECTED = re.compile(r"^\s*print\(.*\)  # (?P<output>.+)$")
_LINK = re.compile(r"\[[^]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the page's lines before its first line, and its lines."""

    language: str
    before: int
    lines: list[str]


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return a page's fenced blocks of some languages, in their order."""
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if inside is None and (fence := _FENCE.match(line)):
            inside = Block(fence[1], number, [])
            found.append(inside)
        elif line == "```":
            inside = None
        elif inside is not None:
            inside.lines.append(line)
    assert inside is None, f"{page.name}: a block is not closed"
    return [block for block in found if block.language in languages]


def script(page: Path) -> str:
    """Return a page's Python blocks as one script, whose line numbers are those of the page."""
    lines: list[str] = []
    for block in blocks(page, "python"):
        lines += [""] * (block.before - len(lines)) + block.lines
    return "\n".join(lines) + "\n"


def outputs(page: Path) -> list[str]:
    """Return what the page says its script prints: `print(...)  # this`, and `text` after `python`."""
    said = [found["output"] for line in script(page).splitlines() if (found := _EXPECTED.match(line))]
    shown = blocks(page, "python", "text")
    for code, text in pairwise(shown):
        if (code.language, text.language) == ("python", "text"):
            said.append("\n".join(text.lines))
    return said


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


with_python = pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)


@with_python
def test_the_code_of_a_page_runs_as_one_script_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    """A page's Python blocks run as one file without a `__main__` guard, and print what the page says."""
    printed = run_script(tmp_path, script(page), name=f"{page.stem.lower()}.py")
    for said in outputs(page):
        assert f"\n{said}\n" in f"\n{printed}", f"{name(page)}: not printed: {said}\n{printed}"


def test_every_parallel_block_is_accepted() -> None:
    """Every `parallel:` block printed on a page is a configuration without a problem."""
    found = 0
    for page in PAGES:
        for block in blocks(page, "yaml"):
            config: Any = yaml.safe_load("\n".join(block.lines))
            if "parallel" in config:
                found += 1
                parsed = ParallelConfig.parse(config["parallel"])
                assert parsed.env == config["parallel"]["env"], f"{name(page)}:{block.before}"
    assert found >= 4


def table_of_backends() -> list[str]:
    lines = []
    for row in BACKENDS.values():
        install = "nothing more" if row.extra is None else f"`espnet3-parallel[{row.extra}]`"
        required = ", ".join(f"`{option}`" for option in row.required)
        cluster = row.cluster.replace(":", ".")
        cells = [f"`{row.name}`", row.title, f"`{cluster}`", install, required]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return lines


def test_the_table_of_backends_is_that_of_the_code() -> None:
    """The rows printed in configuration.md are those of `BACKENDS`, word for word."""
    expected = table_of_backends()
    lines = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").splitlines()
    head = lines.index("| `env` | Workers are | Cluster class | Install | Required options |")
    printed = lines[head + 2 : head + 2 + len(expected)]
    assert printed == expected, "it should be:\n" + "\n".join(expected)
    assert not lines[head + 2 + len(expected)].startswith("|"), "the table has a row too many"


def test_every_exception_has_a_section_of_its_own() -> None:
    """errors.md has one section for each exception class, in the order of the code, and no other."""
    classes = [
        one.__name__
        for module in (errors, ledger_errors)
        for one in vars(module).values()
        if inspect.isclass(one)
        and issubclass(one, errors.ParallelError)
        and one.__module__ == module.__name__
    ]
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^## `(\w+)`$", page, re.MULTILINE) == classes


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository and, after a #, a heading of that page."""
    links = [
        (page, link["target"]) for page in PAGES for link in _LINK.finditer(page.read_text(encoding="utf-8"))
    ]
    for page, target in links:
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name(page)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{name(page)}: {target}"


def test_make_targets_on_the_pages_exist() -> None:
    """Every `make something` on a page is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        said = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert said <= targets, name(page)


def commands(page: Path, program: str) -> list[list[str]]:
    """Return what a page's console blocks give to a program, as lists of words."""
    lines = [line for block in blocks(page, "console") for line in block.lines if line.startswith("$ ")]
    typed = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words[words.index(program) + 1 :] for words in typed if program in words]


def _arguments(page: Path, target: str) -> list[list[str]]:
    """Return what a page's `make` commands give to a target in ARGS."""
    made = [words for words in commands(page, "make") if words[0] == target and len(words) == 2]
    return [shlex.split(words[1].removeprefix("ARGS=")) for words in made]


def test_benchmark_commands_on_the_pages_are_understood() -> None:
    """Every option, workload and system that a page gives to `python -m benchmarks` is one of its own."""
    names = {"--workloads": {case.name for case in cases.table()}, "--systems": set(SYSTEMS)}
    found = 0
    for page in PAGES:
        typed = commands(page, "benchmarks")
        typed += _arguments(page, "bench")
        for words in typed:
            found += 1
            options = {word for word in words if word.startswith("--")}
            assert options <= {*names, "--quick", "--rounds", "--out"}, name(page)
            for option in options & set(names):
                given = words[words.index(option) + 1].split(",")
                known = names[option]
                assert all(any(one.startswith(each) for one in known) for each in given), (
                    f"{name(page)}: {given}"
                )
    assert found >= 2


def test_paths_on_the_page_for_contributors_exist() -> None:
    """Every file and folder that CONTRIBUTING.md names is there."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:espnet3|tests|docs|egs3|\.ci)/[\w./-]+)`", page))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
