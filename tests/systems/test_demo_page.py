"""The page of the demo stage in a real browser, with a model that counts samples."""

from __future__ import annotations

import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.systems.browser import end, free_port, is_here, start, visited

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
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start the stage in a process of its own, whose temporary folder is the test's, and end it as Ctrl-C would."""
    (tmp_path / "temporary").mkdir()
    for name, text in (("run.py", SCRIPT), ("src/model.py", MODEL), ("conf/demo.yaml", CONFIG)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    port = free_port()
    with monkeypatch.context() as changed:
        changed.setenv("TMPDIR", str(tmp_path / "temporary"))
        process, link = start([sys.executable, "run.py", str(port)], tmp_path, port)
    try:
        yield link
    finally:
        end(process)
    assert list((tmp_path / "temporary").glob("espnet3-demo-*")) == []


def test_a_recording_is_recognised_and_a_text_file_refused(link: str, tmp_path: Path) -> None:
    """In Chromium a wav gives the model's text and a text file a sentence, and no request leaves the machine."""
    with wave.open(str(tmp_path / "hello.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 12345))
    (tmp_path / "notes.txt").write_text("not a recording")
    with visited(link) as visit:
        for name, said in (
            ("hello.wav", "heard 12345 samples"),
            ("notes.txt", "notes.txt is not a sound file that can be read. A wav, flac or ogg file will do."),
        ):
            visit.give(tmp_path / name)
            visit.says(said)
            visit.take_back()
        given = list((tmp_path / "temporary").rglob("hello.wav"))
        assert given and all("espnet3-demo-" in str(path) for path in given)
        (private,) = (tmp_path / "temporary").glob("espnet3-demo-*")
        assert private.stat().st_mode & 0o777 == 0o700
    assert [url for url in visit.asked if not is_here(url)] == []


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
