"""The glossary: one line for each word, and each word is in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page != GLOSSARY]
ENTRIES = re.findall(r"^\| ([a-z][a-z -]*) \| (.+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
WORDS = [word for word, _ in ENTRIES]


def test_words_are_in_order_and_each_has_one_meaning() -> None:
    """The words are sorted, none is listed twice, and each is explained in one or two sentences."""
    assert len(WORDS) > 30
    assert sorted(set(WORDS)) == WORDS
    for word, meaning in ENTRIES:
        sentences = re.findall(r"[.](?= [A-Z`]|$)", meaning)
        assert 1 <= len(sentences) <= 2, word
        assert meaning.endswith("."), word


def test_every_word_is_used() -> None:
    """Each word of the glossary stands on another page, alone or in the plural."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [w for w in WORDS if not re.search(rf"\b{re.escape(w)}(?:s|es)?\b", text, re.IGNORECASE)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/architecture.md"])
def test_the_entrance_pages_link_to_it(page: str) -> None:
    """Who comes by the front door finds the glossary."""
    assert "glossary.md)" in (ROOT / page).read_text(encoding="utf-8")
