"""A JSON file with a field of another type: an error that names the file, or as if it were not there."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import DetachedRun, ParallelError, worker
from espnet3.parallel.detached.job.stopping import EXIT_FAILED
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.views.facts import read_facts
from espnet3.parallel.views.live import Watcher
from tests.habits import rows
from tests.parallel.detached.work import run_of

BAD = (None, "x", -1, 10**400, [1, "x"], {"x": 1}, True)


def test_a_spec_of_another_version_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A spec of another version is no damage: `retry` writes it again, and nothing has to start anew."""
    (tmp_path / "shard.0.json").write_text('{"schema": 2}')
    assert worker.main([str(tmp_path / "shard.0.json")]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "espnet3-parallel retry" in said and "damaged" not in said and "resume=False" not in said


def test_an_order_to_stop_counts_also_where_it_cannot_be_read(tmp_path: Path) -> None:
    """A cut file ends the jobs, which nobody could cancel else."""
    layout = Layout(tmp_path)
    assert layout.stopped() is None
    layout.stop.parent.mkdir()
    layout.stop.write_text('{"state": "canc')
    assert "stop.json is damaged" in str(layout.stopped())


def fields(value: Any, depth: int = 2) -> Iterator[list[Any]]:
    """Yield the ways to the fields of an object, and to those of the objects in it."""
    for name, inner in value.items() if isinstance(value, dict) and depth else ():
        yield [name]
        yield from ([name, *rest] for rest in fields(inner, depth - 1))


def use(run: Path) -> None:
    """Do all that looks at a run and changes it, short of starting a job."""
    with suppress(ParallelError):
        read_facts(run)
    with suppress(ParallelError):
        Watcher(run).look()
    found = DetachedRun.open(run)
    found.status()
    found.cancel(grace=0)
    list(found.logs())
    list(found.merge())


@pytest.mark.parametrize(("state", "step"), rows([("done", 1), ("failed", 1), ("done", 4)], [("done", 4)]))
def test_no_field_of_another_type_is_a_raw_error(state: str, step: int, tmp_path: Path) -> None:
    """Whatever a field of any JSON file holds, every verb works or raises an error of ours, without a wait."""
    run = run_of(tmp_path / "a", n=4, shards=2, config={} if state == "done" else {"bad": [3, "raise"]})
    run.wait(150)
    if state == "done":
        run.merge()
    folder, damaged = run.path, tmp_path / "damaged"
    files = [file.relative_to(folder) for pattern in ("*.json", "done") for file in folder.rglob(pattern)]
    assert len(files) > 12
    raw = []
    for file in sorted(files):
        good = json.loads((folder / file).read_text())
        for number, way in enumerate(fields(good)):
            if number % step:
                continue
            value = BAD[number % len(BAD)]
            content = json.loads(json.dumps(good))
            place = content
            for name in way[:-1]:
                place = place[name]
            place[way[-1]] = value
            shutil.copytree(folder, damaged, ignore=shutil.ignore_patterns("*.tmp"))
            (damaged / file).write_text(json.dumps(content))
            try:
                with suppress(ParallelError):
                    use(damaged)
            except Exception as error:
                raw.append(f"{file}: {'.'.join(map(str, way))} = {value!r:.20}: {error!r}")
            shutil.rmtree(damaged)
    assert not raw, "\n".join(raw)
