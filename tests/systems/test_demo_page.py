"""The page of the demo stage in a real browser: `make test-demo` installs what this needs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import wave
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("ESPNET3_TEST_DEMO"):  # by `make test-demo`: there, what is missing is a failure
    sync_api = import_module("playwright.sync_api")
else:
    sync_api = pytest.importorskip("playwright.sync_api", reason="`make test-demo` installs it")
    pytest.importorskip("gradio", reason="`make test-demo` installs it")
    if not shutil.which("chromium"):
        pytest.skip("needs chromium; `make test-demo` says so where it is missing", allow_module_level=True)

SCRIPT = """\
import sys
from pathlib import Path

from espnet3.systems.base.system import BaseSystem
from espnet3.systems.launch import launch

sys.exit(launch(BaseSystem, recipe_dir=Path("."), argv=["--stages", "demo", f"ui.port={sys.argv[1]}"]))
"""
MODEL = """\
class Seconds:
    def __call__(self, speech):
        return f"heard {len(speech)} samples"
"""
CONFIG = """\
model: {_target_: src.model.Seconds}
ui: {title: A test, port: 7860}
parallel: {env: local, n_workers: 2}
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Start the stage in a process of its own, and end it as Ctrl-C would."""
    for name, text in (("run.py", SCRIPT), ("src/model.py", MODEL), ("conf/demo.yaml", CONFIG)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "run.py", str(port)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert f"http://127.0.0.1:{port}/" in first
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(2)
        process.wait(150)
        process.stdout.close()
    assert process.returncode == 0


def test_a_recording_is_recognised_and_a_text_file_refused(address: str, tmp_path: Path) -> None:
    """In Chromium a wav gives the model's text and a text file a sentence, and no request leaves the machine."""
    with wave.open(str(tmp_path / "hello.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 12345))
    (tmp_path / "notes.txt").write_text("not a recording")
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser: Any = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.route("**/*", lambda route: route.continue_() if is_here(route.request.url) else route.abort())
        page.goto(address)
        text = page.locator("#text textarea")
        for name, said in (
            ("hello.wav", "heard 12345 samples"),
            ("notes.txt", "notes.txt is not a sound file that can be read. A wav, flac or ogg file will do."),
        ):
            page.locator("input[type=file]").first.set_input_files(tmp_path / name)
            sync_api.expect(text).to_have_value(said, timeout=30_000)
            page.screenshot(path=os.environ.get("ESPNET3_DEMO_SHOTS", str(tmp_path)) + f"/{name}.png")
            page.get_by_label("Remove this file").or_(page.get_by_label("Clear")).first.click()
            sync_api.expect(text).to_have_value("")
        browser.close()
    assert [url for url in asked if not is_here(url)] == []


def is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))
