"""The page of the demo stage in a real browser, with a model that counts samples."""

from __future__ import annotations

import sys
import wave
from collections.abc import Iterator
from pathlib import Path

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
def port(tmp_path: Path) -> Iterator[int]:
    """Start the stage in a process of its own, and end it as Ctrl-C would."""
    for name, text in (("run.py", SCRIPT), ("src/model.py", MODEL), ("conf/demo.yaml", CONFIG)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    port = free_port()
    process = start([sys.executable, "run.py", str(port)], tmp_path, port)
    try:
        yield port
    finally:
        end(process)


def test_a_recording_is_recognised_and_a_text_file_refused(port: int, tmp_path: Path) -> None:
    """In Chromium a wav gives the model's text and a text file a sentence, and no request leaves the machine."""
    with wave.open(str(tmp_path / "hello.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 12345))
    (tmp_path / "notes.txt").write_text("not a recording")
    with visited(port) as visit:
        for name, said in (
            ("hello.wav", "heard 12345 samples"),
            ("notes.txt", "notes.txt is not a sound file that can be read. A wav, flac or ogg file will do."),
        ):
            visit.give(tmp_path / name)
            visit.says(said)
            visit.take_back()
    assert [url for url in visit.asked if not is_here(url)] == []
