"""Closing whatever a runner has opened, and putting the files of shards together."""

import io
import shelve

import pytest

from espnet3.parallel.base_runner import concatenate_shard_files
from espnet3.parallel.runner.hooks import close_all


class Writer:
    """Notes when it is closed, and may fail at it."""

    def __init__(self, closed, name, error=None):
        self.closed = closed
        self.name = name
        self.error = error

    def close(self):
        self.closed.append(self.name)
        if self.error is not None:
            raise self.error


def test_each_writer_of_any_nesting_is_closed_once_and_in_order():
    """A writer that is held twice is closed once; paths, numbers, classes and None are let be; a circle has an end."""
    closed = []
    shared = Writer(closed, "shared")
    held = {
        "a": shared,
        "b": [Writer(closed, "b"), (shared, {"c": Writer(closed, "c")})],
        "d": 3,
        "e": None,
        "f": io,
    }
    held["g"] = [held, Writer]
    close_all(held)
    assert closed == ["shared", "b", "c"]
    close_all(None)
    close_all("text")


def test_a_mapping_that_can_be_closed_is_a_writer_itself(tmp_path):
    """A shelf is closed, and not read value by value."""
    with shelve.open(str(tmp_path / "shelf")) as shelf:
        shelf["a"] = 1
        close_all({"shelf": shelf})
        with pytest.raises(ValueError, match="closed"):
            shelf["a"]


def test_a_close_that_raises_keeps_none_of_the_others_open():
    """All writers are closed, and then the first exception is raised."""
    closed = []
    first, second = OSError("disk full"), ValueError("later")
    with pytest.raises(OSError, match="disk full"):
        close_all([Writer(closed, "a", first), Writer(closed, "b", second), Writer(closed, "c")])
    assert closed == ["a", "b", "c"]


def shards(folder, contents):
    """Make shard folders, with a file where there is content for it."""
    made = []
    for number, content in enumerate(contents):
        made.append(folder / f"split.{number}")
        (made[-1] / "sub").mkdir(parents=True)
        if content is not None:
            (made[-1] / "sub" / "out.scp").write_bytes(content)
    return made


def test_the_files_of_shards_are_put_together_byte_by_byte(tmp_path):
    """The parts stand in the order given, and a shard without the file adds nothing; the out folder is made."""
    folders = shards(tmp_path, [b"a 1\r\n", None, b"\xff\n", b""])
    assert concatenate_shard_files(folders, "sub/out.scp", tmp_path / "new" / "out.scp") is True
    assert (tmp_path / "new" / "out.scp").read_bytes() == b"a 1\r\n\xff\n"
    assert concatenate_shard_files(reversed(folders), "sub/out.scp", str(tmp_path / "back")) is True
    assert (tmp_path / "back").read_bytes() == b"\xff\na 1\r\n"


def test_an_earlier_file_goes_where_no_shard_has_one(tmp_path):
    """Without any part the answer is False, and what an earlier run has left under the name is removed."""
    (tmp_path / "out.scp").write_text("stale")
    assert (
        concatenate_shard_files(shards(tmp_path, [None, None]), "sub/out.scp", tmp_path / "out.scp") is False
    )
    assert not (tmp_path / "out.scp").exists()


def test_a_reader_sees_the_whole_file(tmp_path):
    """Who has the earlier file open reads all of it to its end, and nothing but files of the name is left."""
    folders = shards(tmp_path, [b"new\n"])
    (tmp_path / "out.scp").write_text("old\n")
    with open(tmp_path / "out.scp") as reader:
        concatenate_shard_files(folders, "sub/out.scp", tmp_path / "out.scp")
        assert reader.read() == "old\n"
    assert (tmp_path / "out.scp").read_text() == "new\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.scp", "split.0"]
