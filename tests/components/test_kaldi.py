"""Data folders of Kaldi and ESPnet2, read as they are."""

from pathlib import Path

import numpy
import pytest
import soundfile

from espnet3.components.data.data_organizer import indices_of
from espnet3.components.data.kaldi import KaldiDataset

RATE = 8000


def folder(tmp_path: Path, **files: str) -> Path:
    """Write a data folder: two recordings of 1 and 2 seconds, and the files that are given."""
    data = tmp_path / "data"
    data.mkdir()
    for name, seconds in (("a", 1), ("b", 2)):
        samples = (numpy.arange(seconds * RATE) % 1000).astype("int16")
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE)
    content = {"wav_scp": f"recb {tmp_path}/b.wav\nreca {tmp_path}/a.wav\n", **files}
    for name, text in content.items():
        (data / name.replace("_", ".")).write_text(text)
    return data


def test_a_folder_of_four_files(tmp_path: Path) -> None:
    """Utterances come in the order of wav.scp, with text, speaker and length; by position and by id."""
    data = folder(
        tmp_path,
        text="reca hello  world\nrecb\n",
        utt2spk="reca ann\nrecb bob\n",
        utt2dur="reca 1.0\nrecb 2.0\n",
    )
    dataset = KaldiDataset(data, dtype="int16")
    assert list(indices_of(dataset)) == ["recb", "reca"]
    assert [dataset[0]["utt_id"], dataset[1]["utt_id"]] == ["recb", "reca"]
    item = dataset["reca"]
    assert item["speech"].dtype == numpy.int16
    assert item["speech"][:3].tolist() == [0, 1, 2]
    rest = {key: value for key, value in item.items() if key != "speech"}
    assert rest == {"utt_id": "reca", "text": "hello  world", "speaker": "ann", "seconds": 1.0}
    assert dataset["recb"]["text"] == ""
    assert [one.seconds for one in dataset.items] == [2.0, 1.0]


def test_wav_scp_alone_is_enough(tmp_path: Path) -> None:
    """Without the other files an item has no text and no speaker, and the length of its audio, as float samples."""
    item = KaldiDataset(folder(tmp_path))["recb"]
    assert (item["text"], item["speaker"], item["seconds"]) == (None, None, 2.0)
    assert (item["speech"].dtype, item["speech"][1]) == (numpy.float32, 1 / 32768)


def test_segments_cut_recordings(tmp_path: Path) -> None:
    """The utterances are those of segments, each a stretch of a recording; an end of -1 is the recording's."""
    data = folder(
        tmp_path, segments="u1 recb 0.5 1.25\nu2 recb 1.5 -1\nu3 reca 0 1\n", text="u1 x\nu2 y\nu3 z\n"
    )
    dataset = KaldiDataset(data, dtype="int16")
    assert list(dataset.keys()) == ["u1", "u2", "u3"]
    assert [len(dataset[key]["speech"]) for key in ("u1", "u2", "u3")] == [6000, 4000, 8000]
    assert dataset["u2"]["speech"][0] == 12000 % 1000
    assert [item.seconds for item in dataset.items] == [0.75, None, 1.0]


def test_a_pipe_is_refused_with_its_line_and_the_way_out(tmp_path: Path) -> None:
    """A command in wav.scp is not run unless that is asked for; the message has line, command and both fixes."""
    data = folder(tmp_path, wav_scp=f"reca {tmp_path}/a.wav\nrecb touch {tmp_path}/ran |\n")
    with pytest.raises(
        ValueError, match=r"wav\.scp, line 2: the recording 'recb' is a command .*pipes: run.*wav-copy"
    ):
        len(KaldiDataset(data))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match='pipes must be "refuse" or "run", not'):
        KaldiDataset(data, pipes="yes")


def test_a_pipe_is_run_when_its_item_is_read(tmp_path: Path) -> None:
    """With pipes="run" the command's output is the audio, cut by segments; nothing runs for the list."""
    data = folder(tmp_path, wav_scp="recb touch ran; cat b.wav | cat |\n", segments="u1 recb 0.5 1.25\n")
    dataset = KaldiDataset(data, pipes="run", root=tmp_path, dtype="int16")
    assert len(dataset) == 1
    assert not (tmp_path / "ran").exists()
    speech = dataset["u1"]["speech"]
    assert (len(speech), speech[0]) == (6000, 4000 % 1000)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        ("echo no tape >&2; exit 3", RuntimeError, r"line 1: .* ended with 3 and 0 bytes:\nno tape"),
        ("true", RuntimeError, "ended with 0 and 0 bytes"),
        ("echo hello", ValueError, "the output of 'echo hello' cannot be read as audio"),
    ],
)
def test_a_command_that_gives_no_audio_says_so(
    tmp_path: Path, command: str, kind: type[Exception], said: str
) -> None:
    """A failed command, an empty output and one that is no audio are told apart, with what the command said."""
    dataset = KaldiDataset(folder(tmp_path, wav_scp=f"x {command} |\n"), pipes="run")
    with pytest.raises(kind, match=said):
        dataset["x"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"wav_scp": "x a.wav\nx b.wav\n"}, r"wav\.scp, line 2: 'x' is in the file twice, first in line 1"),
        ({"wav_scp": "x a.wav\n\ny b.wav\n"}, r"wav\.scp, line 2: an empty line"),
        ({"text": "reca hello\n"}, r"text has no line for 1 of the 2 utterances in wav\.scp, such as 'recb'"),
        ({"segments": "u1 recx 0 1\n"}, "segments, line 1: 'u1' is of the recording 'recx', which"),
        ({"segments": "u1 reca 1 0.5\n"}, "segments, line 1: 'reca 1 0.5' must be a recording and two times"),
        ({"utt2dur": "reca 1.0\nrecb long\n"}, "utt2dur, line 2: 'long' must be a number of seconds"),
        ({"wav_scp": "reca\nrecb b.wav\n"}, r"wav\.scp, line 1: 'reca' has no path behind it"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    """Whatever is wrong in the lists is an error with the file, and the line where there is one."""
    with pytest.raises(ValueError, match=said):
        len(KaldiDataset(folder(tmp_path, **files)))


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("x missing.wav", FileNotFoundError, "line 1: .*missing.wav is not there; relative paths are"),
        ("x wav.ark:1234", FileNotFoundError, "1234 is a place in the archive wav.ark, and archives"),
        ("x text", ValueError, "line 1: .*text cannot be read as audio"),
        ("x .", FileNotFoundError, "line 1: .* is a folder"),
        ("x x.raw", ValueError, r"line 1: .*x\.raw has no header with its rate and format"),
    ],
)
def test_audio_that_cannot_be_read_is_named(
    tmp_path: Path, line: str, kind: type[Exception], said: str
) -> None:
    """A missing file, an archive and a file that is no audio each have their message, with the line."""
    data = folder(tmp_path, wav_scp=f"{line}\n", text="x hello\n")
    (data / "x.raw").write_bytes(bytes(100))
    with pytest.raises(kind, match=said):
        KaldiDataset(data, root=data)["x"]


def test_another_rate_and_a_segment_behind_the_end_are_refused(tmp_path: Path) -> None:
    """A recording of another rate, and one that ends before an utterance begins, are the item's errors."""
    data = folder(tmp_path, segments="u1 reca 0 1\nu2 reca 5 6\n")
    with pytest.raises(ValueError, match=r"u1 .*has 8000 Hz and not 16000 Hz.*ffmpeg"):
        KaldiDataset(data, rate=16000)["u1"]
    with pytest.raises(ValueError, match="segments, line 2: .*is 1 s long, and the utterance begins at 5 s"):
        KaldiDataset(data)["u2"]


def test_lengths_that_the_audio_has_not_are_refused(tmp_path: Path) -> None:
    """A segment that ends seconds after its recording, and another length in utt2dur, are errors with file and line."""
    data = folder(tmp_path, segments="u1 reca 0 1.4\nu2 recb 0.5 9\n", utt2dur="u1 1.4\nu2 8.5\n")
    assert KaldiDataset(data)["u1"]["seconds"] == 1.0  # what there is; Kaldi's tools cut so little, too
    with pytest.raises(ValueError, match="segments, line 2: .*is 2 s long, and the utterance ends at 9 s"):
        KaldiDataset(data)["u2"]
    (data / "segments").unlink()
    (data / "utt2dur").write_text("reca 1.02\nrecb 100\n")
    assert KaldiDataset(data)["reca"]["seconds"] == 1.0
    with pytest.raises(ValueError, match=r"wav\.scp, line 1: 'recb' is 2 s long, .*utt2dur says 100: write"):
        KaldiDataset(data)["recb"]


def test_the_fingerprint_follows_the_lists(tmp_path: Path) -> None:
    """Another transcript is another fingerprint; the same folder has the same one."""
    data = folder(tmp_path, text="reca x\nrecb y\n")
    before = KaldiDataset(data).fingerprint()
    assert KaldiDataset(str(data)).fingerprint() == before
    (data / "text").write_text("reca x\nrecb z\n")
    assert KaldiDataset(data).fingerprint() != before
