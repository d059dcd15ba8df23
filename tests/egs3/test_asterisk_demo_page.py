"""The recipe's page in a headless Chromium, with PocketSphinx and prompts of the corpus: `make test-demo`."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.egs3.conftest import RECIPE

if os.environ.get("ESPNET3_TEST_DEMO"):  # by `make test-demo`: there, what is missing is a failure
    sync_api = import_module("playwright.sync_api")
else:
    if not shutil.which("chromium"):
        pytest.skip("needs chromium; `make test-demo` says so where it is missing", allow_module_level=True)
    if find_spec("gradio") is None:  # to import it takes seconds, in each process that collects
        pytest.skip("needs gradio; `make test-demo` installs it", allow_module_level=True)
    sync_api = pytest.importorskip("playwright.sync_api", reason="`make test-demo` installs it")

SECONDS = 600  # that an answer may take on a busy machine


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(command: Sequence[str], cwd: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """Start a stage demo in a process group of its own; return it and its link when the page is there."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, start_new_session=True)
    first = process.stdout.readline()
    assert f"http://127.0.0.1:{port}/?token=" in first, first
    return process, first[first.index("http:") :].split()[0]


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait(600)
    process.stdout.close()
    assert process.returncode == 0


@dataclass(frozen=True, slots=True)
class Visit:
    """A page that a person looks at, and every address that it has asked for."""

    page: Any
    asked: list[str]

    def give(self, file: Path) -> None:
        self.page.locator("input[type=file]").first.set_input_files(file)

    def says(self, text: str) -> None:
        sync_api.expect(self.page.locator("#text textarea")).to_have_value(text, timeout=SECONDS * 1000)

    def shot(self, name: str) -> None:
        """Take a picture, for whoever names a folder to look at them."""
        folder = os.environ.get("ESPNET3_DEMO_SHOTS")
        if folder is not None:
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    def take_back(self) -> None:
        self.page.get_by_label("Remove this file").or_(self.page.get_by_label("Clear")).first.click()
        self.says("")


@contextmanager
def visited(link: str, **how: Any) -> Iterator[Visit]:
    """Open a page in Chromium; what it asks of other machines is refused, and remembered."""
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser: Any = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(**how)
        page.set_default_timeout(SECONDS * 1000)
        page.on("request", lambda request: asked.append(request.url))
        page.route("**/*", lambda route: route.continue_() if is_here(route.request.url) else route.abort())
        page.goto(link)
        yield Visit(page, asked)
        browser.close()


def is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


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
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the stage with a temporary folder of its own: what is given to the page is private, and gone at the end."""
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TMPDIR", str(temporary))
        process, link = demo(free_port())
    try:
        yield link
        assert [each.stat().st_mode & 0o777 for each in temporary.glob("espnet3-demo-*")] == [0o700]
    finally:
        end(process)
    assert list(temporary.glob("espnet3-demo-*")) == []


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


def test_the_page_is_for_those_who_have_its_link(link: str) -> None:
    """Without the token, or with another one, nothing of the page answers; the link gives a cookie without it."""
    token = link.partition("token=")[2]
    page = link.partition("?")[0]

    def asked(url: str, cookie: str = "", method: str = "GET") -> httpx.Response:
        headers = {"Cookie": cookie} if cookie else {}
        return httpx.request(method, url, headers=headers, timeout=60)

    stranger = f"espnet3=1; token={token}"
    refused = [
        asked(page + path, stranger)
        for path in ("", "config", "gradio_api/info", "?token=other", "theme.css")
    ]
    refused += [
        asked(page + path, stranger, "POST") for path in ("gradio_api/upload", "gradio_api/queue/join")
    ]
    assert {one.status_code for one in refused} == {403}
    assert not any("gradio" in one.text for one in refused)
    opened = asked(link)
    cookie = opened.headers["Set-Cookie"]
    assert opened.status_code == 303 and token not in cookie
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert asked(page, cookie.partition(";")[0]).status_code == 200
