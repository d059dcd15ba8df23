"""The benchmark of many workers starts real ones, measures, and leaves none."""

import json
import subprocess
import sys

import psutil
import pytest

from benchmarks import ROOT, scale


@pytest.mark.matrix
def test_the_figures_of_a_few_workers_are_taken_and_no_process_stays(tmp_path):
    """Four workers: all results are right, half of them go, the figures are in the file, nothing runs on."""
    out = tmp_path / "scale.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        "--workers",
        "4",
        "--items",
        "2000",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "µs per empty item" in done.stdout
    report = json.loads(out.read_text())
    (figures,) = report["points"]
    point = scale.Point(**figures)
    assert report["items"] == 2000 and point.workers == 4 and point.shrink_right
    assert 0 < point.first_s < point.start_s
    assert min(point.empty_us, point.sleep_us, point.resident, point.end_s) > 0
    assert point.sleep_s >= 2000 * scale.SECONDS / 4
    lines = [
        " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])
    ]  # None: it has ended
    assert not [line for line in lines if "benchmarks.light_jobs" in line]
