"""Files that are not as a run left them: a repair that says what it did, or an error; never a wrong merge."""

import json
import shutil
from pathlib import Path

import pytest

from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import Draft
from espnet3.parallel.ledger.identity import hash_indices
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.ledger.split import LEFT, OK, Scan
from espnet3.parallel.runner.shards import write_manifest
from tests.parallel.ledger.making import N, begin, events, expected, finished, lines_of, partial

SOME = range(6)


def repaired(path: Path) -> list[str]:
    return [event["what"] for event in events(path) if event["event"] == "repaired"]


def test_a_file_cut_anywhere_keeps_its_whole_lines(tmp_path: Path) -> None:
    """Cut at every byte, a split's file has exactly the items whose lines are whole, and no other."""
    partial(tmp_path, SOME)
    file = tmp_path / "split.0/results.jsonl"
    whole, planned = file.read_bytes(), range(N)
    (tmp_path / "split.0/done").unlink()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut])
        scan = Scan(tmp_path, planned, hash_indices(range(N)))
        complete = sum(end <= cut for end in ends)
        assert scan.state == bytes([OK] * complete + [LEFT] * (N - complete)), cut
        assert len(scan.repaired) == (cut != 0 and cut not in ends and cut - 1 not in ends)


def test_a_file_with_a_wrong_byte_never_gives_a_wrong_result(tmp_path: Path) -> None:
    """With any byte changed, every item that counts as done has the line that was written for it."""
    partial(tmp_path, SOME)
    file = tmp_path / "split.0/results.jsonl"
    whole, planned = file.read_bytes(), range(N)
    lines = whole.splitlines(keepends=True)
    for at in range(len(whole)):
        for byte in (whole[at] ^ 1, ord("\n"), 0, ord("9")):
            changed = bytes([*whole[:at], byte, *whole[at + 1 :]])
            file.write_bytes(changed)
            scan = Scan(tmp_path, planned, hash_indices(range(N)))
            done = [p for p in range(N) if scan.state[p] == OK]
            for position in done:
                offset = scan.locate(position)[1]
                assert changed[offset:].startswith(lines[position][:-1])
            assert len(done) >= len(SOME) - 2  # one line, or two where the end between them went
            assert changed == whole or scan.repaired or len(done) == len(SOME)


def test_a_resume_after_a_cut_gives_the_undisturbed_bytes(tmp_path: Path) -> None:
    """After a torn line and one damaged in the middle, the next run says so and ends with the same file."""
    partial(tmp_path, SOME)
    file = tmp_path / "split.0/results.jsonl"
    data = bytearray(file.read_bytes())
    data[data.index(b"<1>")] ^= 4
    file.write_bytes(data[:-5])
    assert finished(tmp_path) == expected()
    again = "items without another outcome are computed again"
    assert repaired(tmp_path) == [
        f"split.0/results.jsonl: 2 damaged or torn lines left out (line 2, 6); {again}"
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"schema": 1}', None], ids=repr)
def test_a_damaged_run_file_is_an_error_that_offers_two_ways(tmp_path: Path, content: bytes | None) -> None:
    """Without a readable run.json nothing is guessed; "force" keeps the results, False starts anew."""
    partial(tmp_path, SOME)
    for resume, kept in (("force", len(SOME)), (False, 0)):
        folder = tmp_path / str(resume)
        shutil.copytree(tmp_path / "split.0", folder / "split.0")
        if content is not None:
            (folder / "run.json").write_bytes(content)
        with pytest.raises(DamagedFolderError, match=r'run\.json.*resume="force"'):
            begin(folder)
        with begin(folder, resume=resume) as run:
            assert run.ok == kept
        if content is not None:
            assert (folder / "old.0/run.json").read_bytes() == content
        assert finished(folder) == expected()


def test_a_lost_run_file_does_not_cost_the_shards_that_are_done(tmp_path: Path) -> None:
    """A runner with writers of its own, forced over a damaged run.json, keeps to the cut in its manifest.json."""
    shard, positions = tmp_path / "split.0", range(6)
    with begin(tmp_path, plan={"shards": [0, 6]}) as run:
        shard.mkdir()
        lines = dict(zip(positions, lines_of(range(N), positions), strict=True))
        run.shard_done(shard, positions, lines, {})
    write_manifest(tmp_path, "", [0, 6], range(N))
    (tmp_path / "run.json").write_text("{")
    with begin(tmp_path, resume="force", plan={"shards": [0, 16]}) as run:
        assert run.plan == {"shards": [0, 6]}
        assert run.has_shard((shard, positions))
    assert json.loads((tmp_path / "run.json").read_text())["plan"] == {"shards": [0, 6]}


def test_what_a_killed_driver_was_writing_is_cleared_away(tmp_path: Path) -> None:
    """Temporary files of the run's own are removed by the next session, those of a user's writers are not."""
    partial(tmp_path, SOME)
    drafts = [Draft(tmp_path / name) for name in ("results.jsonl", "split.0/done", "split.0/model")]
    partial(tmp_path, [])
    assert [Path(draft.temporary).exists() for draft in drafts] == [False, False, True]
    for draft in drafts:
        draft.close()


def test_a_run_file_of_a_newer_version_is_refused_under_any_resume(tmp_path: Path) -> None:
    """A folder of a newer version is neither resumed nor forced."""
    partial(tmp_path, SOME)
    run = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**run, "schema": 99}))
    for resume in (True, "force"):
        with pytest.raises(DamagedFolderError, match="schema 99"):
            begin(tmp_path, resume=resume)


@pytest.mark.parametrize(
    ("name", "content", "left"),
    [
        ("results.jsonl", None, N),
        ("done", "{", N - len(SOME)),
        ("spec.json", None, N - len(SOME)),
        ("spec.json", "{", N - len(SOME)),
    ],
)
def test_a_file_of_a_split_that_is_lost_or_damaged_costs_what_it_held(
    tmp_path: Path, name: str, content: str | None, left: int
) -> None:
    """What has whole lines is kept, the rest is computed again; a lost spec is noted."""
    partial(tmp_path, SOME)
    file = tmp_path / "split.0" / name
    file.unlink() if content is None else file.write_text(content)
    with begin(tmp_path) as run:
        assert len(run.left()) == left
    assert any("looked up by its index" in what for what in repaired(tmp_path)) == (name == "spec.json")
    assert finished(tmp_path) == expected()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (encode_line(N, N, 1), f"position {N}, and only {N} were planned"),
        (encode_line(3, 4, 1), "an outcome of index 4 at position 3, and 3 was planned there"),
        (encode_line(3, "3", 1), 'an outcome of index "3" at position 3, and 3 was planned there'),
    ],
    ids=["position", "index", "type"],
)
def test_an_outcome_that_was_never_planned_is_an_error(tmp_path: Path, line: bytes, said: str) -> None:
    """A line of another run is an error that names file and line, at the start and at the merge."""
    partial(tmp_path, SOME)
    with begin(tmp_path) as run:
        run.append([line])
        with pytest.raises(DamagedFolderError, match=rf"split\.1/results\.jsonl, line 1: .*{said}"):
            run.merge()
    with pytest.raises(DamagedFolderError, match=said):
        begin(tmp_path)


def test_two_different_results_of_an_item_are_an_error(tmp_path: Path) -> None:
    """Either may be right: both files and places are named, and nothing is merged."""
    partial(tmp_path, SOME)
    with begin(tmp_path) as run:
        run.append([*lines_of(range(N), range(6, N)), encode_line(2, 2, "other")])
        said = r"item 2 .*split\.0/results\.jsonl, at byte \d+, and .*split\.1/results\.jsonl, at byte \d+\. "
        with pytest.raises(DamagedFolderError, match=said):
            run.merge()
    assert not (tmp_path / "receipt.json").exists()


def test_a_torn_event_is_ended_before_the_next(tmp_path: Path) -> None:
    """The log of events stays readable line by line after a process died in one."""
    partial(tmp_path, SOME)
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"time": "20')
    partial(tmp_path, [])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert lines[1] == '{"time": "20'
    assert json.loads(lines[2])["event"] == "resumed"
