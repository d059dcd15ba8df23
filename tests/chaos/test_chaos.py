"""Runs that are killed, starved and damaged at random moments end as if nothing had happened."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.chaos import outcome
from tests.chaos.__main__ import rounds, story, table
from tests.chaos.outcome import Disturbance, count_again
from tests.chaos.program import BAD, compute
from tests.chaos.rounds import N, reference


@pytest.mark.slow
def test_disturbed_runs_end_as_an_undisturbed_one() -> None:
    """After each round the results are the same bytes, the receipt is correct, and little was done twice."""
    base = Path(tempfile.mkdtemp(prefix="chaos-"))
    played = list(rounds(range(4), at_once=2, base=base))
    assert not any(p.wrong for p in played), "\n".join(story(p) for p in played if p.wrong)
    assert len(played) == 4
    shutil.rmtree(base)
    print(table(played))


def test_an_undisturbed_run_is_what_a_plain_loop_gives(tmp_path: Path) -> None:
    """What the disturbed runs are compared with has been computed by a loop as well."""
    lines = []
    for idx in range(N):
        if idx % BAD == 7:
            lines.append({"index": idx, "failure": "error"})
        else:
            lines.append({"index": idx, "result": compute(idx)})
    expected = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    found = reference("items", tmp_path)
    assert found.results == expected
    assert [error[1] for error in found.errors] == [idx for idx in range(N) if idx % BAD == 7]
    (tmp_path / "items/run/results.jsonl").write_bytes(expected.replace(b"share", b"shape", 1))
    with pytest.raises(AssertionError, match="not the file of its receipt"):
        outcome.read(tmp_path / "items/run", "items")


def test_items_computed_again_are_counted_for_what_lost_them() -> None:
    """Lost in flight counts for the kill, lost from disk for the damage after it, repeated at once for its own."""
    on_disk = frozenset({1, 2})
    found = [
        Disturbance("kill", 0, on_disk),
        Disturbance("worker", 1, on_disk | {3, 4}),
        Disturbance("damage", 2, on_disk | {3, 4, 5}, damaged=True),
    ]
    count_again(found, [[1, 2, 3], [3, 4, 4], [5], [], [1, 5, 6]])
    assert [d.again for d in found] == [1, 1, 2]
    with pytest.raises(AssertionError, match=r"items \[6\] were computed more than once"):
        count_again(found, [[], [], [], [], [6, 5, 6]])
