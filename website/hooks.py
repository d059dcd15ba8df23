"""What the site has beyond `docs/`: pages from elsewhere, a page for each error and each public module, their links."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = "project/examples.md"
# A page of the site, and the file in the repository that it is
ELSEWHERE = {
    EXAMPLES: "examples/README.md",
    "project/recipe.md": "egs3/asterisk/asr/README.md",
    "project/benchmarks.md": "benchmarks/README.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/changelog.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)?(?P<anchor>#[^)\s]*)?(?=\))")
_ERROR = re.compile(r"^## `(?P<name>\w+)`$", re.MULTILINE)
_MODULE = re.compile(r"^## (?P<name>espnet3[\w.]+)$", re.MULTILINE)
_NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
API = "generated/api.md"
# What the search shows first, and last
_BOOST = {
    "quickstart.md": 8.0,
    "howto.md": 4.0,
    "durability.md": 2.0,
    "configuration.md": 2.0,
    "manual.md": 1.5,
}
_LAST = ("errors/", "api/", "project/", "generated/", "coming-from")
# Where docstrings are read from, if not in the module that a name is imported from
_SOURCE = {
    "DictReturnWorkerPlugin": "espnet3.parallel.clusters.client",
    "wrap_func_with_worker_env": "espnet3.parallel.env.calls",
    "BackendContract": "espnet3.parallel.testing.contract",
    "equal": "espnet3.parallel.testing.answers",
    "same_answer": "espnet3.parallel.testing.answers",
    "concatenate_shard_files": "espnet3.parallel.runner.hooks",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in `docs/`, and the style sheet."""
    style = (Path(__file__).parent / "site.css").read_text(encoding="utf-8")
    files.append(File.generated(config, "site.css", content=style))
    for page, source in ELSEWHERE.items():
        text = examples() if page == EXAMPLES else (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, source, page)))
    errors = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    for name, text in sections(errors, _ERROR).items():
        page = f"errors/{name.lower()}.md"
        moved = relinked(f"# {name}\n\n{text}", "docs/errors.md", page)
        files.append(_beside(config, page, moved))
    names = (ROOT / "docs" / API).read_text(encoding="utf-8")
    for module, text in sections(names, _MODULE).items():
        lines = [f"::: {_SOURCE.get(name, module)}.{name}\n" for name in _NAME.findall(text)]
        files.append(_beside(config, api_page(module), "\n".join([f"# {module}\n", *lines])))
    return files


def _beside(config: Any, page: str, content: str) -> File:
    """Return a page that is not in the navigation: another page leads to it."""
    added = File.generated(config, page, content=content)
    added.inclusion = added.inclusion.NOT_IN_NAV
    return added


def api_page(module: str) -> str:
    """Return the page of a public module."""
    return (
        f"api/{module.rpartition('.')[2]}.md"
        if module != "espnet3.parallel.ledger.errors"
        else "api/ledger_errors.md"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links of `docs/` that point out of it to their pages, and each error's heading to its own."""
    source = page.file.src_uri
    page.meta["search"] = {"boost": 0.5 if source.startswith(_LAST) else _BOOST.get(source, 1.0)}
    if source.startswith(("project/", "errors/", "api/")):
        return markdown
    if source == "errors.md":
        markdown = _ERROR.sub(
            lambda m: f"{m[0]}\n\n[A page of its own](errors/{m['name'].lower()}.md)", markdown
        )
    if source == API:
        return _MODULE.sub(lambda m: f"{m[0]}\n\n[All docstrings](../{api_page(m['name'])})", markdown)
    return relinked(markdown, f"docs/{source}", source)


def examples() -> str:
    """Return the page of examples: their table, and each file."""
    folder = ROOT / "examples"
    text = (folder / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((\w+)\.py\)", r"](#\1py)", text)
    for file in sorted(folder.glob("*.py")):
        text += f"\n## {file.name}\n\n```python\n{file.read_text(encoding='utf-8')}```\n"
    return text


def sections(text: str, head: re.Pattern[str]) -> dict[str, str]:
    """Return the text of each section whose heading is of one kind, by the name in it."""
    heads = list(head.finditer(text))
    ends = [each.start() for each in heads[1:]] + [len(text)]
    return {
        each["name"]: text[each.end() : end].strip() + "\n" for each, end in zip(heads, ends, strict=True)
    }


def relinked(text: str, source: str, page: str) -> str:
    """Return a page's text with the links that its file has in the repository turned into those of the site.

    Args:
        text: The text.
        source: The file, from the repository's root.
        page: The page that it becomes.

    Raises:
        ValueError: A link leads to a file that is no page.
    """
    pages = {file: name for name, file in ELSEWHERE.items()}

    def moved(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)) if target else source
        if file.startswith("docs/"):
            there = file.removeprefix("docs/")
        elif file in pages:
            there = pages[file]
        else:
            raise ValueError(f"{source}: {target} is no page of the site")
        if there == page:
            return anchor
        return posixpath.relpath(there, posixpath.dirname(page) or ".") + anchor

    outside = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if k % 2 else _LINK.sub(moved, part) for k, part in enumerate(outside))
