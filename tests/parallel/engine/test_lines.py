"""Standard streams that are sent to workers."""

import pickle
import sys

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.lines import LineStream


def test_standard_streams_travel_by_name(monkeypatch):
    """A function that holds standard output finds the worker's there, also while another stream stands in for it."""
    stream = sys.stdout
    assert pickle.loads(pickling.dumps(stream)) is stream
    monkeypatch.setattr(sys, "stdout", LineStream(stream, lambda *_: False, prompts=True))
    assert pickle.loads(pickling.dumps(stream)) is sys.stdout
    assert pickle.loads(pickling.dumps(sys.stdout)) is sys.stdout
