"""Files that are there whole or not at all."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from espnet3.parallel.ledger.files import BY_UMASK, PRIVATE, Draft, create_whole, leftovers, write_whole

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _umask():
    """Have a umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_writer_that_is_killed_leaves_the_old_content_and_a_draft(tmp_path: Path) -> None:
    """After kill -9 between two pieces the file is as it was, and its draft is found."""
    path = tmp_path / "file"
    write_whole(path, b"old")
    program = (
        "import os, signal, sys\n"
        "from espnet3.parallel.ledger.files import Draft\n"
        "draft = Draft(sys.argv[1])\n"
        "draft.file.write(b'half')\n"
        "draft.file.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = leftovers(tmp_path, "file")
    assert left.read_bytes() == b"half"
    assert leftovers(tmp_path, "fil") == leftovers(tmp_path, "le") == []


@pytest.mark.parametrize(("mode", "umask", "seen"), [(PRIVATE, 0, 0o600), (BY_UMASK, 0o027, 0o640)])
def test_who_may_read_it(tmp_path: Path, mode: int, umask: int, seen: int) -> None:
    """A file is its owner's alone, or as the umask has it, and so is a draft from its first moment."""
    os.umask(umask)
    with Draft(tmp_path / "file", mode) as draft:
        assert Path(draft.temporary).stat().st_mode & 0o777 == seen
        draft.commit()
    assert (tmp_path / "file").stat().st_mode & 0o777 == seen


@pytest.mark.parametrize("links", [True, False])
def test_one_of_several_creates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Of many that create a file at once one succeeds, with its own content; the others are told of it."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if not links:  # a file system without hard links, of which there is none here
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    said: list[int | None] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        try:
            create_whole(path, b"%d" % number)
        except FileExistsError:
            said.append(None)
        else:
            said.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = [number for number in said if number is not None]
    assert len(said) == 8
    assert path.read_bytes() == b"%d" % first
    assert list(tmp_path.iterdir()) == [path]
