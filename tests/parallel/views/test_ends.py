"""Detached jobs that did not finish their shards, in a report."""

from __future__ import annotations

from pathlib import Path

from espnet3.parallel.detached.states import JobState
from espnet3.parallel.views.facts import read_facts
from espnet3.parallel.views.page import page_of
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import held, hold, let_go
from tests.standins import standin
from tests.waiting import wait_until


def test_a_job_that_met_its_walltime_is_in_the_report_also_after_its_retry(tmp_path: Path) -> None:
    """Before it is submitted again it is so "now"; then the retry's word of it stays, also once all is merged."""
    hold(tmp_path, 0)
    with standin("pbs"):
        run = submit("pbs", tmp_path, 2, 2, walltime="00:00:20")
        held(tmp_path, 0)
        wait_until(lambda: run.status().counts == {JobState.TIMEOUT: 1, JobState.DONE: 1}, said=run.status)
        (now,) = read_facts(run.path).ends
        assert (now.state, now.shards, now.noticed) == ("timeout", (0,), None)
        let_go(tmp_path, 0, dead=True)
        run.retry()
        assert run.wait(600).done
        (then,) = read_facts(run.path).ends
        assert (then.state, then.shards) == ("timeout", (0,)) and then.noticed is not None
        assert run.merge() is not None
    facts = read_facts(run.path)
    assert facts.ends == (then,) and facts.state == "complete"
    page = page_of(facts)
    assert "Jobs that did not finish their shards" in page and "ended it at its walltime" in page


def test_a_report_of_jobs_that_cannot_be_known_has_all_the_rest(tmp_path: Path) -> None:
    """Where the list of jobs is damaged the report is written all the same, and says what it could not tell."""
    with standin("pbs"):
        run = submit("pbs", tmp_path, 2, 2)
        assert run.wait(600).done
    (run.path / "detached/jobs.json").write_text("{")
    facts = read_facts(run.path)
    assert facts.ok == 2 and not facts.ends
    assert any(
        "how its jobs are now is not known here" in note and "jobs.json" in note for note in facts.notes
    )
