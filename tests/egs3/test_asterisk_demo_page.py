"""The recipe's page in a real browser, with PocketSphinx and prompts of the corpus."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.egs3.conftest import RECIPE
from tests.systems.browser import end, free_port, is_here, start, visited

HEARD = {
    "tt-monkeysintro": "they have been carried away by monkeys",
    "transfer": "please hold while i try that extension",
    "confbridge-muted": "you are now muted",
}
REFUSED = "notes.txt is not a sound file that can be read. A wav, flac or ogg file will do."
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
}


def demo(port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, str(RECIPE / "run.py"), "--stages", "demo", f"ui.port={port}"]
    return start(command, RECIPE, port)


@pytest.fixture(scope="module")
def link() -> Iterator[str]:
    process, link = demo(free_port())
    try:
        yield link
    finally:
        end(process)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("not a recording")
    return path


@pytest.mark.parametrize("look", LOOKS)
def test_a_prompt_is_recognised_and_a_text_file_refused(
    link: str, corpus: Path, notes: Path, look: str
) -> None:
    """Wide, narrow and dark: prompts give their words, a text file a sentence, and nothing leaves the machine."""
    with visited(link, **LOOKS[look]) as visit:
        for name, words in HEARD.items():
            visit.give(corpus / "wav" / f"{name}.wav")
            visit.says(words)
            visit.shot(f"{look}-{name}")
            visit.take_back()
        visit.give(notes)
        visit.says(REFUSED)
        visit.shot(f"{look}-refused")
        width = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]  # nobody has to scroll sideways
    assert [url for url in visit.asked if not is_here(url)] == []


@pytest.mark.parametrize("seed", range(2))
def test_a_page_that_was_killed_is_there_again(corpus: Path, seed: int) -> None:
    """SIGKILL while somebody waits for a text: the workers end too, and the same command shows the page at its port."""
    name, words = random.Random(seed).choice(list(HEARD.items()))
    port = free_port()
    process, link = demo(port)
    with visited(link) as visit:
        visit.give(corpus / "wav" / f"{name}.wav")
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=600)[1] == []
    process, link = demo(port)
    try:
        with visited(link) as visit:
            visit.give(corpus / "wav" / f"{name}.wav")
            visit.says(words)
    finally:
        end(process)
