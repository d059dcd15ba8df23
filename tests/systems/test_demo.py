"""The demo stage without its page: what becomes of a recording, and what is said about a config."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import soundfile

from espnet3.parallel import ConfigError, get_parallel_config
from espnet3.parallel.errors import MissingPackageError
from espnet3.systems.base.system import BaseSystem
from espnet3.systems.demo.page import ui_of
from espnet3.systems.demo.recognition import Recognition, read_recording, warm_recognition


def write_wav(path: Path, samples: Any, rate: int = 16000) -> Path:
    soundfile.write(path, numpy.asarray(samples, dtype=numpy.int16), rate)
    return path


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> Any:
    return numpy.rint(8000 * numpy.sin(2 * numpy.pi * hertz * numpy.arange(int(rate * seconds)) / rate))


def test_a_16_khz_recording_is_given_to_the_model_as_it_is(tmp_path: Path) -> None:
    """16-bit mono samples of the model's rate arrive unchanged to the bit."""
    samples = tone(16000)
    found = read_recording(write_wav(tmp_path / "a.wav", samples), 16000, 60)
    assert found.dtype == numpy.int16
    assert (found == samples).all()


@pytest.mark.parametrize("rate", [8000, 44100])
def test_another_rate_and_two_channels_are_brought_to_the_models(tmp_path: Path, rate: int) -> None:
    """A stereo recording of any rate is the same tone at 16 kHz, of the same length."""
    stereo = numpy.stack([tone(rate)] * 2, axis=1)
    found = read_recording(write_wav(tmp_path / "a.wav", stereo, rate), 16000, 60)
    assert found.shape == (16000,)
    assert numpy.abs(found - tone(16000)).max() < 40


def refused(path: Path | None) -> str:
    return Recognition(lambda speech: "never", max_seconds=2.0)(None if path is None else str(path))


def test_what_is_no_recording_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """A text file, an empty file, no samples, a long recording and nothing at all each get a sentence that says so."""
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "zero.wav").touch()
    assert refused(tmp_path / "notes.txt") == (
        "notes.txt is not a sound file that can be read. A wav, flac or ogg file will do."
    )
    assert "zero.wav is empty" in refused(tmp_path / "zero.wav")
    assert "holds no sound" in refused(write_wav(tmp_path / "none.wav", []))
    assert "longer than 2 seconds" in refused(write_wav(tmp_path / "long.wav", tone(16000, 2.5)))
    assert "Choose a sound file" in refused(None)


def test_a_model_that_fails_gets_a_sentence_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The person reads the kind of error and no traceback, which is in the log; no words are said in a sentence."""

    def answer(speech: Any) -> str:
        raise KeyError("no such word")

    path = str(write_wav(tmp_path / "a.wav", tone(16000)))
    said = Recognition(answer)(path)
    assert "could not be recognised (KeyError)" in said and "Traceback" not in said
    assert "no such word" in caplog.text
    assert Recognition(lambda speech: "")(path) == "No words were found in this recording."


MODEL = """\
import os

class Counting:
    def __init__(self):
        with open("made", "a") as file:
            file.write(f"{os.getpid()}\\n")

    def __call__(self, speech, unit):
        return f"{len(speech)} {unit} in {os.getpid()}"
"""


def test_the_workers_load_the_model_once_and_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers of the block hold the model before the first call, and no call makes another."""
    (tmp_path / "counting_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {"_target_": "counting_model.Counting"},
        "model_kwargs": {"unit": "samples"},
        "input": {"rate": 8000},
        "parallel": {"env": "local", "n_workers": 2},
    }
    path = str(write_wav(tmp_path / "a.wav", tone(16000)))
    with warm_recognition(config) as recognise:
        made = (tmp_path / "made").read_text().split()
        said = [recognise(path) for _ in range(4)]
    assert len(made) == len(set(made)) == 2 and str(os.getpid()) not in made
    assert all(one.startswith("8000 samples in ") and one.split()[-1] in made for one in said)
    assert (tmp_path / "made").read_text().split() == made
    assert get_parallel_config() is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"ui": {"prot": 80}, "model": {}}, "ui.prot is not known"),
        ({"ui": {"port": "no"}, "model": {}}, "ui.port = 'no'"),
        ({"input": {"rate": 0}, "model": {"_target_": "x.Y"}}, "input.rate = 0"),
        ({"ui": 7860, "model": {}}, "ui = 7860: must be a mapping with title, description, host, port"),
        ({}, "has no 'model'"),
    ],
)
def test_a_wrong_config_is_refused_before_workers_start(config: Any, said: str) -> None:
    """Keys that are none, and values that make no sense, are named; without `ui.host` the address is loopback."""
    assert ui_of(None)["host"] == "127.0.0.1"
    with pytest.raises(ConfigError, match=said):
        ui_of(config.get("ui"))
        with warm_recognition(config):
            pass


def test_a_missing_gradio_is_said_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage needs gradio alone, and says how to get it before it starts a worker."""
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[demo\]"):
        BaseSystem(demo_config={"model": {"_target_": "x.Y"}}).run(["demo"])
