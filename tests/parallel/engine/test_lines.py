"""Whole lines out of what several threads print, and the streams themselves sent to workers."""

import io
import pickle
import sys
import threading

import pytest

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.lines import LineStream


@pytest.fixture
def lines():
    """What a stream's lines are given to."""
    return []


def stream_to(lines, wanted=True, prompts=False):
    """Return a stream that gives its lines to a list."""

    def emit(stream, text):
        lines.append(text)
        return wanted

    return LineStream(io.StringIO(), emit, prompts=prompts)


def test_a_line_is_passed_on_when_it_ends(lines):
    """Parts of a line wait for its end, and several lines travel together."""
    stream = stream_to(lines)
    print("a", "b", end="", file=stream)
    stream.flush()
    assert lines == []
    stream.write(" c\nd\n")
    assert lines == ["a b c\nd\n"]


def test_threads_do_not_mix_their_lines(lines):
    """Lines that two threads write by halves come out whole."""
    stream = stream_to(lines)
    stream.write("mine ")
    other = threading.Thread(target=stream.write, args=("theirs\n",))
    other.start()
    other.join()
    stream.write("too\n")
    assert lines == ["theirs\n", "mine too\n"]


def test_a_prompt_is_shown_when_it_is_flushed(lines):
    """A line without an end that is flushed is passed on as it is, where it may be a prompt."""
    stream = stream_to(lines, prompts=True)
    print("go on? ", end="", flush=True, file=stream)
    assert lines == ["go on? "]


def test_what_nobody_wants_is_written_as_it_is(lines):
    """Text that is not wanted goes to the stream, with the rest of its line."""
    stream = stream_to(lines, wanted=False)
    stream.write("one\ntw")
    stream.pass_on()
    assert stream.getvalue() == "one\ntw"


def test_standard_streams_travel_by_name(monkeypatch):
    """A function that holds standard output finds the worker's there, also while another stream stands in for it."""
    stream = sys.stdout
    assert pickle.loads(pickling.dumps(stream)) is stream
    monkeypatch.setattr(sys, "stdout", LineStream(stream, lambda *_: False, prompts=True))
    assert pickle.loads(pickling.dumps(stream)) is sys.stdout
    assert pickle.loads(pickling.dumps(sys.stdout)) is sys.stdout
