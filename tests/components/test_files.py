"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest

from espnet3.components.data.files import remove_leftovers, write_atomic, write_text_atomic
from espnet3.parallel.ledger.files import BY_UMASK, Draft


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """When the writer raises, the file keeps its content and no temporary file stays."""
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """The temporary files of the same path go, those of other files stay until somebody tidies the folder."""
    drafts = [Draft(tmp_path / name, BY_UMASK) for name in ("file", "file", "file.scp", "other")]
    write_text_atomic(tmp_path / "file", "new")
    assert [os.path.exists(draft.temporary) for draft in drafts] == [False, False, True, True]
    write_atomic(tmp_path / "other", lambda file: file.write(b"x"), sole=False)
    assert os.path.exists(drafts[3].temporary)
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
    for draft in drafts:
        draft.close()


def test_text_is_utf8_with_unix_line_ends_and_makes_its_folder(tmp_path: Path) -> None:
    """Text arrives byte for byte, in a folder that was not there before."""
    write_text_atomic(tmp_path / "new" / "file", "é\nb\n")
    assert (tmp_path / "new" / "file").read_bytes() == b"\xc3\xa9\nb\n"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    """Others may read a written file exactly when the umask lets them."""
    before = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
