"""The corpus from the real packages, and what is said when they cannot be downloaded."""

import json
import shutil
import wave
from pathlib import Path

import pytest

from dataset.builder import AsteriskBuilder, SourceError
from dataset.normalise import normalise


def manifest_of(data: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (data / "manifest.jsonl").read_text().splitlines()]


def test_the_corpus_has_its_known_size(corpus: Path) -> None:
    """551 utterances, 1455.6 seconds, 3291 words, 18 244 characters, as the recipe says, and their attribution."""
    facts = AsteriskBuilder(corpus).facts()
    counted = [facts[name] for name in ("utterances", "seconds", "words", "characters")]
    assert counted == [551, 1455.6, 3291, 18244]
    said = (corpus / "ATTRIBUTION.txt").read_text()
    assert all(each in said for each in ("CC-BY-SA-3.0", "Allison Smith", "Changes:"))
    assert len(manifest_of(corpus)) == 551
    assert len(list((corpus / "wav").iterdir())) == 551


def test_kaldi_files_agree_with_the_manifest(corpus: Path) -> None:
    """text, utt2spk, utt2dur and wav.scp have the manifest's ids in sorted order, and its values."""
    rows = manifest_of(corpus)
    ids = [row["utt_id"] for row in rows]
    assert ids == sorted(ids)
    for name, field in (("text", "text"), ("utt2spk", "speaker"), ("utt2dur", "seconds")):
        lines = (corpus / name).read_text().splitlines()
        assert lines == [f"{row['utt_id']} {row[field]}" for row in rows]
    for row, line in zip(rows, (corpus / "wav.scp").read_text().splitlines(), strict=True):
        utt_id, path = line.split(" ", 1)
        assert (utt_id, Path(path)) == (row["utt_id"], (corpus / row["audio"]).resolve())


def test_audio_is_16_bit_mono_at_16_khz(corpus: Path) -> None:
    """Every wav has the form the recogniser needs, and the length the manifest says."""
    for row in manifest_of(corpus)[::25]:
        with wave.open(str(corpus / row["audio"])) as audio:
            assert audio.getparams()[:3] == (1, 2, 16000)
            assert round(audio.getnframes() / 16000, 4) == row["seconds"]


def test_transcripts_hold_only_words(corpus: Path) -> None:
    """Transcripts are normalised, none is empty, and there are no tones or silences."""
    for row in manifest_of(corpus):
        assert row["text"], row
        assert set(row["text"]) <= set("abcdefghijklmnopqrstuvwxyz' "), row
        assert row["text"] == normalise(row["raw"])
        assert not row["utt_id"].startswith(("silence", "beep"))


def test_without_apt_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no apt-get the message names the cache folder and the AUDIO=folder way."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="apt-get is not here") as caught:
        AsteriskBuilder(tmp_path / "data").build()
    assert "make demo AUDIO=folder" in str(caught.value)
    assert str(tmp_path / "data" / "downloads") in str(caught.value)
    assert not (tmp_path / "data" / "built.json").exists()


def test_a_failed_download_shows_what_apt_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown package gives apt's own words, the way out, and no file in the cache."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    monkeypatch.setattr("dataset.builder.TEXT_PACKAGE", "no-such-package-of-sounds")
    builder = AsteriskBuilder(tmp_path / "data")
    with pytest.raises(SourceError, match="Unable to locate package no-such-package-of-sounds") as caught:
        builder.build()
    assert "make demo AUDIO=folder" in str(caught.value)
    assert list(builder.cache_dir.iterdir()) == []


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    """A .deb that cannot be unpacked is an error with its name, and leaves nothing unpacked."""
    if shutil.which("dpkg") is None:
        pytest.skip("needs dpkg")
    data = tmp_path / "data"
    (data / "downloads").mkdir(parents=True)
    for name in ("asterisk-core-sounds-en_1_all.deb", "asterisk-core-sounds-en-g722_1_all.deb"):
        (data / "downloads" / name).write_bytes(b"not a package")
    with pytest.raises(SourceError, match=r"unpacking .*asterisk-core-sounds-en_1_all\.deb failed"):
        AsteriskBuilder(data).build()
    assert [path.name for path in data.iterdir()] == ["downloads"]
