"""The files of `examples/`: each runs as it is, and gives what it says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.components.needed import needed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_each_is_in_the_table_and_short() -> None:
    """The table names every file, each has fewer than 60 lines, and says what it does when asked."""
    files = sorted(file.name for file in EXAMPLES.glob("*.py"))
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+\.py)\]\(\1\)", table, re.MULTILINE)) == files and len(files) == 7
    for file in files:
        assert len((EXAMPLES / file).read_text(encoding="utf-8").splitlines()) < 60, file


def test_a_function_over_files(tmp_path: Path) -> None:
    """Every file has its count; one that cannot be read is a failure in its place."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("The cat sat on a mat")
    (tmp_path / "texts/b.txt").write_bytes(b"\xff\xfe")
    said = example("function_over_files.py", tmp_path, "texts", "--workers", "2").stdout.splitlines()
    assert said[0] == "texts/a.txt 4" and said[1].startswith("texts/b.txt <ItemFailure")
    assert "UnicodeDecodeError" in said[1]


def test_batched_inference(tmp_path: Path) -> None:
    """The classes are those of the model in this process, whatever the number of workers."""
    needed("torch")
    one, two = (example("batched_inference.py", tmp_path, "--items", "100", "--workers", n) for n in "12")
    assert one.stdout == two.stdout and sum(eval(one.stdout).values()) == 100


def test_statistics_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """Mean and deviation are near what the corpus was drawn from, and equal for one and three workers."""
    one, three = (example("corpus_statistics.py", tmp_path, "--workers", n).stdout for n in "13")
    assert one == three
    for mean, deviation in re.findall(r"mean ([\d.]+), deviation ([\d.]+)", one):
        assert float(mean) == pytest.approx(3, abs=0.1) and float(deviation) == pytest.approx(2, abs=0.1)


def test_slurm_detached_without_slurm(tmp_path: Path) -> None:
    """As jobs of this machine it gives the number of primes below 40,000; a second call has nothing left to do."""
    for _ in range(2):
        said = example("slurm_detached.py", tmp_path, "--env", "local", "--wait").stdout
        assert "4203 primes" in said and "40 of 40 items done" in said


def test_audio_files(tmp_path: Path) -> None:
    """Each recording is there at the new rate, and the list names them in order."""
    (tmp_path / "wavs").mkdir()
    for name, seconds in [("b", 0.5), ("a", 1.0), ("c", 0.25)]:
        tone = np.sin(np.arange(int(16000 * seconds)) * 2 * np.pi * 440 / 16000)
        soundfile.write(tmp_path / f"wavs/{name}.wav", 0.5 * tone, 16000)
    lines = example("audio_files.py", tmp_path, "wavs").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["a", "b", "c"]
    samples, rate = soundfile.read(tmp_path / lines[0].split()[1])
    assert rate == 8000 and len(samples) == 8000
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.argmax(spectrum) == 440  # Hz: a bin is one of them


def test_a_dataframe_column(tmp_path: Path) -> None:
    """Rows that could be read have their seconds, the other one its message."""
    said = example("dataframe_column.py", tmp_path).stdout
    assert "1.5" in said and "3723.0" in said and "not enough values to unpack" in said


def test_long_items(tmp_path: Path) -> None:
    """All questions but the one that is never answered have their answer, and that one is a timeout."""
    said = example("long_items.py", tmp_path, "--seconds", "1").stdout.splitlines()
    assert len(said) == 21
    answered = [line for line in said if re.fullmatch(r"What is (\d+)\? -> WHAT IS \1\?", line)]
    assert len(answered) >= 19, "one in five tries fails, and each item has six"
    assert "-> (timeout) it took longer than item_timeout = 1 s" in said[-1]
