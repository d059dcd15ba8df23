"""The recipe end to end on a few prompts: recogniser, run.py, demo.py, report."""

import json
import os
import shutil
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

from dataset.dataset import ManifestDataset
from src.recogniser import Recogniser
from src.report import DemoFigures, demo_report, metrics_table, percent
from tests.egs3.submitted import merged_elsewhere, submit_and_die

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "egs3" / "asterisk" / "asr"
# Four prompts of five or more words, 13 seconds in all; the selection is spread over the corpus.
DECODING = ["--stages", "create_dataset", "infer", "measure"]
FEW = ["dataset.min_words=5", "dataset.at_most=80", "--limit", "4"]


def script(name: str, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of the recipe as a user does, from another folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, str(RECIPE / name), *args]
    return subprocess.run(
        command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def one_process(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of all three stages in one process."""
    home = tmp_path_factory.mktemp("home")
    done = script("run.py", *DECODING, *FEW, f"data_dir={corpus}", "exp_dir=exp", folder=home)
    assert done.returncode == 0, done.stderr
    assert "already built" in done.stderr
    assert "prompts: 4 utterances, 0 failed" in done.stdout
    return home / "exp" / "inference"


def test_the_stages_write_scp_text_and_metrics(one_process: Path) -> None:
    """Infer leaves hyp.scp, ref.scp and text; measure leaves WER and CER over the same four prompts."""
    folder = one_process / "prompts"
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".scp") == ["hyp.scp", "ref.scp"]
    assert (folder / "text").read_text() == (folder / "hyp.scp").read_text()
    metrics = json.loads((one_process / "metrics.json").read_text())
    wer = metrics["espnet3.components.metrics.wer.WER"]["prompts"]
    refs = (folder / "ref.scp").read_text().splitlines()
    assert wer["words"] == sum(len(line.split()) - 1 for line in refs)
    assert (wer["utterances"], wer["min_words"]["5"]["utterances"], wer["failed_items"]) == (4, 4, 0)
    assert 0.0 < wer["wer"] < 0.6


def test_workers_batches_and_order_never_change_the_answer(
    one_process: Path, corpus: Path, tmp_path: Path
) -> None:
    """Two workers, another batch size and another order give the same bytes as one process."""
    stages = ["--stages", "infer", "measure"]
    args = ["--parallel_config", "parallel_local", "batch_size=3", "runner.longest_first=false"]
    done = script("run.py", *stages, *args, *FEW, f"data_dir={corpus}", "exp_dir=exp", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("prompts/text", "prompts/hyp.scp", "prompts/ref.scp", "metrics.json"):
        assert (tmp_path / "exp/inference" / name).read_bytes() == (one_process / name).read_bytes(), name


def test_the_submitter_is_killed_and_another_process_merges_the_text(
    one_process: Path, corpus: Path, tmp_path: Path
) -> None:
    """After SIGKILL of the submitter, `wait` and `merge` in another folder leave the bytes of one process."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    block: dict[str, object] = {"env": "local", "n_workers": 2, "detached": {"shards": 2}}
    run = submit_and_die(tmp_path, block, *FEW, f"data_dir={corpus}")
    assert merged_elsewhere(run, elsewhere) == (one_process / "prompts/text").read_bytes()
    for name in ("hyp.scp", "ref.scp", "results.jsonl"):
        assert (run / name).read_bytes() == (one_process / "prompts" / name).read_bytes(), name
    done = script("run.py", "--stages", "measure", "exp_dir=exp", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (run.parent / "metrics.json").read_bytes() == (one_process / "metrics.json").read_bytes()


def test_threads_take_turns_at_the_recogniser(corpus: Path) -> None:
    """Threads that share a recogniser get the answers that one thread gets."""
    dataset = ManifestDataset(corpus / "manifest.jsonl", min_words=3)
    short = sorted(range(len(dataset)), key=lambda k: dataset.items[k].seconds)[:2]
    speech = [dataset[k]["speech"] for k in short]
    recogniser = Recogniser()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(recogniser, speech)) == [recogniser(one) for one in speech]


def test_the_recogniser_finds_no_words_in_nothing() -> None:
    """Recordings too short for a word, down to no samples at all, give an empty string."""
    recogniser = Recogniser()
    for samples in (0, 1, 159, 400):
        assert recogniser(numpy.zeros(samples, dtype="int16")) == "", samples


@pytest.mark.parametrize("speech", [numpy.zeros(9), numpy.zeros((2, 9), dtype="int16"), [1, 2]])
def test_the_recogniser_refuses_other_samples(speech: object) -> None:
    """Floats, two channels and lists would decode to noise; the message says what came."""
    with pytest.raises(TypeError, match="must be a one-dimensional int16 array, not"):
        Recogniser()(speech)


def test_the_demo_decodes_a_folder_without_references(corpus: Path, tmp_path: Path) -> None:
    """`--audio` prints the words of each recording, with times and without a WER."""
    (tmp_path / "mine").mkdir()
    shutil.copy(corpus / "wav" / "conf-onlyone.wav", tmp_path / "mine" / "so long.wav")
    done = script("demo.py", "--audio", "mine", "--workers", "1", "exp_dir=exp", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "so_long:  there is currently one other participant" in done.stdout
    assert "decoded     1 recording of mine" in done.stdout
    assert "real-time factor" in done.stdout
    assert "WER" not in done.stdout


def test_the_demo_names_a_recording_it_cannot_decode(tmp_path: Path) -> None:
    """A recording at another rate ends the demo at once, with the file's name and no traceback."""
    with wave.open(str(tmp_path / "phone.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))
    done = script("demo.py", "--audio", ".", folder=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "phone.wav has 8000 Hz" in done.stderr


def test_the_demo_reports_rates_and_examples(corpus: Path, tmp_path: Path) -> None:
    """The closing report has WER, CER, audio, wall time and lines of reference and hypothesis."""
    args = ["--utterances", "2", "--min_words", "3", "--workers", "1"]
    done = script("demo.py", *args, f"data_dir={corpus}", "exp_dir=exp", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("WER", "CER", "audio", "wall time", "1 worker ", "ref ", "hyp ", "Allison Smith"):
        assert word in done.stdout, done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_mistake_on_the_command_line_is_explained(tmp_path: Path) -> None:
    """Stages that cannot follow each other end with status 2, one message and no traceback."""
    done = script("run.py", "--stages", "infer", "measure", "runner.async_mode=true", folder=tmp_path)
    assert done.returncode == 2
    assert "run infer alone, then `espnet3-parallel wait` and `merge`" in done.stderr
    assert "Traceback" not in done.stderr


SCORE = {"wer": 0.25, "errors": 1, "words": 4, "utterances": 2, "min_words": {}}


def test_tables_show_a_rate_per_group() -> None:
    """The table has a line for the whole set and one for each group; no rate shows as a dash."""
    group = {"wer": None, "errors": 0, "words": 0, "utterances": 0}
    table = metrics_table({"a.b.WER": {"test": {**SCORE, "min_words": {"5": group}}}})
    head, whole, longer = table.splitlines()
    assert head.split() == ["test", "set", "metric", "utterances", "rate", "errors", "of"]
    assert whole.split() == ["test", "WER", "2", "25.0", "%", "1", "4", "words"]
    assert longer.split() == ["test", "WER", "0", "(5+", "words)", "-", "0", "0", "words"]
    assert percent(None) == "-"


def test_the_report_names_failures_and_shortens_long_lists() -> None:
    """Failed items are counted in the report; of many recordings the first twenty are shown."""
    figures = DemoFigures("recordings of x", 30, 2, 60.0, 6.0, 1, Path("exp"))
    rows = [{"utt_id": f"u{k}", "hyp": ""} for k in range(28)]
    report = demo_report(figures, rows)
    assert "30 recordings of x, 2 of them failed" in report
    assert "(real-time factor 0.100)" in report
    assert "u19:  (no words found)" in report
    assert "u20:" not in report
    assert f"... and 8 more in {Path('exp') / 'hyp.scp'}" in report
