"""Worker jobs of PBS: their output, and what PBS says of one that can never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.standins import standin
from tests.waiting import wait_until

OPTIONS: dict[str, Any] = {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "10m"}


def test_jobs_write_their_own_output_and_pbs_delivers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS would deliver after the end, into a folder that is gone by then; in a folder with a space it is there too."""
    here = tmp_path / "my runs"
    here.mkdir()
    monkeypatch.chdir(here)
    with standin("pbs") as queue:
        with get_client({"env": "pbs", "n_workers": 2, "options": OPTIONS}) as client:
            client.wait_for_workers(2, timeout=600)
            assert parallel_map(abs, [-1, -2]) == [1, 2]
            (folder,) = here.glob("espnet3-pbs-*")
            jobs = queue.jobs()
            written = {path.name for path in folder.iterdir()}
            assert written == {f"{each.job}[{each.index}].out" for each in jobs}
            assert all("Start worker at" in (folder / name).read_text() for name in written)
            assert {each.output for each in jobs} | {each.error for each in jobs} == {"/dev/null"}
        wait_until(lambda: not queue.unfinished())
        assert not list(here.iterdir())
