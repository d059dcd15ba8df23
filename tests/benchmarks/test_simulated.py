"""The benchmark of simulated workers runs the real driver on them, and leaves nothing."""

import json
import subprocess
import sys

from benchmarks import ROOT, simulated


def test_simulated_workers_do_all_items(tmp_path):
    """Thirty workers that compute nothing: every item has its result, and the figures are in the file."""
    out = tmp_path / "simulated.json"
    command = [sys.executable, "-m", "benchmarks.simulated", "--workers", "30", "--seconds", "0.5"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert "driver, of a core" in done.stdout, done.stderr
    (point,) = (simulated.Point(**figures) for figures in json.loads(out.read_text())["points"])
    assert point.workers == 30 and point.items == 300
    assert 0 < point.efficiency <= 1.01 and point.cpu_s > 0
    assert point.wall_s >= simulated.LEAST * 0.99
