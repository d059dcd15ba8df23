"""The report of a run: finished, stopped, killed, at work, detached, with files of its own, and too large to read."""

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from espnet3.parallel import ItemError, run
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.timing.reading import RunTimes, Stint
from espnet3.parallel.views.facts import RunFacts, read_facts
from espnet3.parallel.views.page import conclusions, page_of
from espnet3_parallel.runs import report
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import ROOT, Provider, Squares, held, hold, let_go, run_of, shut
from tests.standins import standin
from tests.waiting import wait_until

HELD = """
import sys
from pathlib import Path
from tests.parallel.detached.work import Provider, Squares
folder = Path(sys.argv[1])
Squares(Provider({"folder": str(folder)}), output_dir=folder / "run", progress=False)(range(3))
"""
_EMPTY = {"meta"}


class Checked(HTMLParser):
    """Looks at a page as a browser and a screen reader do."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.linked: list[str] = []
        self.feed(page)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Keep what is open, what is named, and what would be fetched."""
        found = dict(attrs)
        self.tags.append(tag)
        if tag == "svg":
            assert found["role"] == "img"
            self.labels.append(found["aria-label"])
        self.linked += [value for name, value in found.items() if name in ("src", "href", "action")]
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """Keep the same of an element without content."""
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element."""
        assert self.open and self.open.pop() == tag


def facts_of(folder: Path, *, cls: Any = Squares, n: int = 20, **arguments: Any) -> RunFacts:
    """Run items, of which the second fails, in this process; return the facts of the folder."""
    config = {"folder": str(folder), "bad": [2, "raise"], "api_key": "hunter2-hunter2"}
    try:
        cls(Provider(config), output_dir=folder / "run", progress=False, **arguments)(range(n))
    except ItemError:
        assert "on_error" not in arguments
    return read_facts(folder / "run")


def test_the_page_of_a_finished_run_needs_nothing_else(tmp_path: Path) -> None:
    """The page is well formed, fetches nothing, runs nothing, names its charts, and shows no secret."""
    facts = facts_of(tmp_path, on_error="record", max_retries=1)
    page = page_of(facts)
    checked = Checked(page)
    assert not checked.linked and "script" not in checked.tags and "//" not in page.replace("hunter2", "")
    assert len(checked.labels) >= 2 and all(checked.labels)
    assert "prefers-color-scheme:dark" in page
    assert "hunter2" not in page and "***" in page
    assert (facts.state, facts.ok, facts.failed) == ("complete", 19, 1)
    assert page.count("no square of 2") >= 2 and "Traceback (most recent call last)" in page
    assert "What is not recorded" in page
    assert len(conclusions(facts)) == 3 and "All 20 items have an outcome" in conclusions(facts)[0]
    assert "replay" in conclusions(facts)[1]
    assert facts.total("retries") == 1


def test_a_hundred_failed_items_are_shown_and_the_others_linked(tmp_path: Path) -> None:
    """Each item stands with its own message, by type and then by message; errors.jsonl is linked for the rest."""

    def forward(idx: int) -> int:
        raise (ValueError(f"bad recording {idx}") if idx % 3 else KeyError(f"speaker {idx % 2}"))

    run(forward, range(150), output_dir=tmp_path / "run", on_error="record", progress=False)
    page = page_of(read_facts(tmp_path / "run"))
    types = page[page.index("Failures (150)") :]
    assert types.index("<code>ValueError</code>: 100 items") < types.index("<code>KeyError</code>: 50 items")
    assert types.count("<td>bad recording ") == 100 and types.count("<td>&#x27;speaker ") == 1
    assert "<strong>100 x</strong> bad recording 1;" in types and "<strong>50 x</strong>" in types
    assert Checked(page).linked == [(tmp_path / "run/errors.jsonl").as_uri()]
    assert (
        "All 150 failed items are in" in page and "100 of 150 failures" in page and "such as bad rec" in page
    )


def test_the_verb_writes_a_file_or_prints_json(tmp_path: Path) -> None:
    """`report RUN -o FILE` writes the page, and `--format json` prints the same facts with the conclusions."""
    facts = facts_of(tmp_path, on_error="record")
    before = sorted((tmp_path / "run").rglob("*"))
    run, file = str(tmp_path / "run"), tmp_path / "page.html"
    assert CliRunner().invoke(report, [run, "-o", str(file)]).exit_code == 0
    Checked(file.read_text(encoding="utf-8"))
    said = json.loads(CliRunner().invoke(report, [run, "--format", "json"]).output)
    assert said["conclusions"] == conclusions(facts) and said["failures"][0]["count"] == 1
    assert sorted((tmp_path / "run").rglob("*")) == before, "the run's folder is not touched"


def test_a_run_that_an_item_stopped_says_so(tmp_path: Path) -> None:
    """Of a run that ended early the report says what stopped it, what is left, and how to go on."""
    facts = facts_of(tmp_path)
    said = conclusions(facts)[0]
    assert facts.state == "unfinished" and facts.left == 20 - facts.ok - facts.failed > 0
    assert "no process works on it" in said and "no square of 2" in said and "the same call" in said
    Checked(page_of(facts))


def test_a_resumed_run_has_both_sessions(tmp_path: Path) -> None:
    """Two sessions are told apart: the first was stopped, the second went on with its outcomes."""
    first = facts_of(tmp_path)
    facts = facts_of(tmp_path, on_error="record", retry_failed=True)
    assert [session.ended for session in facts.sessions] == ["stopped", "computed"]
    assert facts.sessions[1].resumed and facts.sessions[1].ok_before == first.ok
    assert facts.began == facts.sessions[0].begin < facts.ended < facts.read
    assert 0 < facts.worked < facts.ended - facts.began
    page = page_of(facts)
    assert "It began 20" in page and " and ended 20" in page and "it took, in 2 sessions" in page
    assert sum(stint.items for stint in facts.times.stints) == 20


def test_a_live_run_and_then_a_killed_one(tmp_path: Path) -> None:
    """While a driver is at work the report says so; once it was killed, that it has noted no end."""
    hold(tmp_path, 1)
    with subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], cwd=ROOT) as driver:
        held(tmp_path, 1)
        live = read_facts(tmp_path / "run")
        driver.kill()
        driver.wait()
    assert live.state == "at work" and str(driver.pid) in live.driver
    Checked(page_of(live))
    assert not any("Nothing had to be done twice" in said for said in conclusions(live)), "nobody knows yet"
    dead = read_facts(tmp_path / "run")
    assert dead.state == "unfinished" and dead.sessions[-1].ended == "" and dead.drivers[-1].ended == "died"
    page = page_of(dead)
    Checked(page)
    assert "without a word" in page and "1 process ended without giving back what it held." in page


def test_the_jobs_of_a_detached_run_have_rows(tmp_path: Path) -> None:
    """Each shard has its stretch with host and process, and the items add up; so does what a notebook shows."""
    hold(tmp_path, 5)
    run = run_of(tmp_path, n=12, workers=1, shards=3, on_error="record", config={"bad": [2, "raise"]})
    try:
        held(tmp_path, 5)
        live = read_facts(run.path)
        assert live.state == "at work" and live.shards[1].ended == "alive"
        let_go(tmp_path, 5)
        assert run.wait(600).done
    finally:
        shut(run)
    facts = read_facts(run.path)
    assert facts.state == "complete" and [span.name for span in facts.shards] == [
        "shard 0",
        "shard 1",
        "shard 2",
    ]
    assert facts.times.items == 12
    shown = run._repr_html_()  # what a notebook shows of it
    assert str(run.path) in shown and "12 of 12, 1 failed" in shown and "3 of 3" in shown
    page = page_of(facts)
    assert Checked(page).labels and "they are not merged yet" in page


def test_retries_of_detached_jobs_are_counted(tmp_path: Path) -> None:
    """There is no driver to note them at a session's end: the jobs do, and the report says how many there were."""
    run = run_of(tmp_path, on_error="record", max_retries=2, config={"bad": [2, "raise"]})
    try:
        assert run.wait(600).failed == 1
        facts = read_facts(run.path)
        assert facts.retries == 2 and "2 times an item was tried again." in page_of(facts)
        assert [session.ran for session in facts.sessions] == [facts.times.items] and facts.times.items
        run.retry(failed_items=True)
        assert run.wait(600).failed == 1
    finally:
        shut(run)
    again = read_facts(run.path)
    assert [session.ran for session in again.sessions] == [facts.times.items, 1]
    assert again.sessions[1].failed_before == 1 and "it took, in 2 sessions" in page_of(again)


def test_texts_of_users_are_no_markup(tmp_path: Path) -> None:
    """A message, a worker and an item that look like HTML are shown as they are."""
    facts_of(tmp_path, on_error="record")
    script = "<script>alert(1)</script>"
    errors = tmp_path / "run/errors.jsonl"
    errors.write_text(errors.read_text().replace("no square", script))
    facts = read_facts(tmp_path / "run")
    times = RunTimes(
        stints=[Stint(f"worker {script}", 1.0, 2.0, 1.0, 2)], counts={0: 2}, slow=[(1.0, 0, script)]
    )
    page = page_of(replace(facts, times=times, slowest=((1.0, script),)))
    Checked(page)
    assert "<script>" not in page and page.count("&lt;script&gt;") >= 5


def test_a_job_that_met_its_walltime_is_in_the_report_also_after_its_retry(tmp_path: Path) -> None:
    """Before it is submitted again it is so "now"; then the retry's word of it stays, also once all is merged."""
    hold(tmp_path, 0)
    with standin("pbs"):
        run = submit("pbs", tmp_path, 2, 2, walltime="00:00:12")
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
