"""The pages that are made of the code are those of the code, and tables name what is there."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from espnet3 import parallel
from tests.docs.test_docs import ROOT


def test_the_pages_are_made_of_the_code_as_it_is(tmp_path: Path) -> None:
    """What `make pages` would write is what is there, but for white space: its width is that of click."""
    made = [sys.executable, str(ROOT / "website/pages.py"), str(tmp_path)]
    subprocess.run(made, check=True, timeout=600, capture_output=True)
    for page in sorted(tmp_path.iterdir()):
        written = (ROOT / "docs/generated" / page.name).read_text(encoding="utf-8")
        assert written.split() == page.read_text(encoding="utf-8").split(), f"{page.name}: run `make pages`"


def test_every_public_name_is_on_the_page() -> None:
    """The page of public names has each name of `espnet3.parallel.__all__` once."""
    page = (ROOT / "docs/generated/api.md").read_text(encoding="utf-8")
    said = Counter(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {name: said[name] for name in parallel.__all__} == dict.fromkeys(parallel.__all__, 1)
