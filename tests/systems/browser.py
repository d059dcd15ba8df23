"""The page of the stage demo in a headless Chromium: `make test-demo` installs what this needs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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
    assert process.stdout is not None
    first = process.stdout.readline()
    assert f"http://127.0.0.1:{port}/?token=" in first, first
    return process, first[first.index("http:") :].split()[0]


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
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
