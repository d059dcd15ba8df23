"""`python -m benchmarks.recording`: what it compares."""

from __future__ import annotations

from benchmarks import recording
from espnet3.parallel.timing.counts import ItemTimes
from espnet3.parallel.timing.reading import read_times


def test_what_is_left_out_is_recorded_again_afterwards(tmp_path, monkeypatch) -> None:
    """A run with recording has times, one without has none, and the package is as it was."""
    monkeypatch.setattr(recording.tempfile, "TemporaryDirectory", lambda prefix: _Kept(tmp_path))
    for records in (True, False, True):
        recording.seconds(2, 40, records)
        assert bool(read_times(_Kept.last).items) is records
    assert ItemTimes.of_steps([(1, 0.5)]).counts


class _Kept:
    """A folder that stays."""

    last = None
    made = 0

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        _Kept.made += 1
        _Kept.last = self.folder / str(_Kept.made)
        return str(_Kept.last)

    def __exit__(self, *error):
        return None
