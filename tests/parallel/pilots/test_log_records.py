"""What items log on workers, and what of it the driver's handlers get."""

import logging
import os
import pickle
import re
import sys
import textwrap

import pytest

from espnet3.parallel import WorkerSetupError, get_client, parallel_for, parallel_map, set_parallel
from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.lines import LineStream
from espnet3.parallel.pilots.log_records import MOST
from tests.habits import rows
from tests.parallel.contract.helpers import finish, start_script
from tests.parallel.contract.notebooks import notebook
from tests.parallel.pilots.as_tasks import have_tasks
from tests.parallel.pilots.items import (
    BATCH,
    LOGGER,
    Provider,
    Speak,
    dies,
    floods,
    forks,
    logs_much,
    speaks_from_a_thread,
)
from tests.waiting import wait_until


@pytest.fixture(scope="module", params=rows(["pilots", "tasks"], ("pilots",)))
def client(request):
    """Two workers, whose chunks come over channels or as Dask tasks."""
    with get_client({"env": "local", "n_workers": 2}) as client:
        if request.param == "tasks":
            have_tasks(client)
        yield client


@pytest.fixture
def seen(caplog):
    """The records of the user's loggers that this process's handlers have got."""
    caplog.set_level(logging.INFO, LOGGER)
    caplog.set_level(logging.ERROR, "user.quiet")
    kept = []
    handler = logging.Handler()
    handler.emit = kept.append
    logging.root.addHandler(handler)
    yield kept
    logging.root.removeHandler(handler)


def test_records_arrive_with_worker_and_item(client, seen):
    """Records of an item come at the driver's level for their logger, with worker and item, extras and traceback."""
    assert Speak(Provider({}), progress=False)(range(20)) == list(range(20))
    texts = [record.getMessage() for record in seen if "loading" not in record.getMessage()]
    info, error = (record for record in seen if getattr(record, "item", None) == 3)
    assert texts == [info.getMessage(), error.getMessage()]
    assert info.getMessage() == f"[worker {info.worker}, item 3] info"
    assert info.worker in ("0", "1")
    assert info.speaker == "f01"
    assert (info.levelname, info.funcName, info.name) == ("INFO", "forward", LOGGER)
    assert info.process != os.getpid()
    assert "LookupError: gone" in error.exc_text


def test_what_the_env_logs_arrives(client, seen):
    """Records of a provider come from the worker, without an item; of one that fails too."""
    with pytest.raises(WorkerSetupError):
        Speak(Provider("broken"), progress=False)(range(4))
    record = next(each for each in seen if "loading" in each.getMessage())
    assert record.getMessage() == f"[worker {record.worker}] loading"
    assert record.item is None


def test_a_batch_is_named_by_its_ends(client, seen):
    """A record of batch_forward has the items of the batch."""
    Speak(Provider({}), batch_size=BATCH, progress=False)(range(2 * BATCH))
    (record,) = (each for each in seen if "a batch" in each.getMessage())
    assert record.item == [0, 1, 2, 3]
    assert record.getMessage() == f"[worker {record.worker}, items 0 to 3] a batch"


def test_a_fork_of_an_item_does_not_use_its_channel(client, seen):
    """A child process of an item logs where it always did; the item's own records arrive."""
    assert parallel_map(forks, range(3)) == [0, 1, 2]
    assert [each.getMessage().partition("] ")[2] for each in seen] == ["from the parent"] * 3


def test_last_words_arrive(seen):
    """What an item logs before it ends its worker is heard."""
    with get_client({"env": "local", "n_workers": 2}), pytest.raises(RuntimeError):
        parallel_map(dies, range(4))
    assert {each.item for each in seen if "about to end" in each.getMessage()} == {2}


def test_records_are_there_when_their_result_is(client, seen):
    """When a result is yielded, what its item has logged has been handled."""
    for n, _ in enumerate(parallel_for(speaks_from_a_thread, range(10), ordered=True), 1):
        assert len(seen) >= n


def test_an_item_that_logs_does_not_wait_for_a_slow_consumer(tmp_path):
    """While the caller of parallel_for is busy with a result, an item may log more than its connection holds."""
    set_parallel({"env": "local", "n_workers": 2})
    results = parallel_for(logs_much, range(2), folder=str(tmp_path))
    assert next(results) == 0
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists)
    assert list(results) == [1]


# these two use up what their workers may send in a second: they come last


def test_too_many_records_are_cut_and_counted(client, seen):
    """Of a flood of records some arrive, and the number of those left out is said."""
    parallel_map(floods, [0])
    texts = [record.getMessage() for record in seen]
    arrived = [text for text in texts if "number" in text]
    left_out = [text for text in texts if "more records left out: more than 100 in a second" in text]
    assert MOST // 2 < len(arrived) < 20 * MOST
    counted = sum(int(text.split()[3].replace(",", "")) for text in left_out)
    assert len(arrived) + counted == 20 * MOST


def test_logging_that_a_provider_configures_stays_with_the_worker(tmp_path, monkeypatch):
    """A provider that calls logging.basicConfig gets its records in its own file, at its own level."""
    monkeypatch.setenv("OWN_LOG", str(tmp_path / "own.log"))
    with get_client({"env": "local", "n_workers": 2}):
        for _ in range(2):
            Speak(Provider("configures"), progress=False)(range(8))
    assert (tmp_path / "own.log").read_text().count(f"DEBUG:{LOGGER}:debug") == 2


@pytest.mark.parametrize("workers", rows([1, 2], (2,)))
def test_a_script_without_logging_set_up_sees_warnings(tmp_path, workers):
    """As with one worker, warnings of items are printed where the program has not configured logging."""
    result = finish(
        start_script(
            tmp_path,
            f"""
            import logging
            from espnet3.parallel import parallel_map, set_parallel

            def warns(x):
                logging.getLogger("mine").warning("careful with %d", x)
                logging.getLogger("mine").info("nothing")
                return x

            set_parallel({{"env": "local", "n_workers": {workers}}})
            parallel_map(warns, range(3))
            """,
        )
    )
    for item in range(3):
        assert f"careful with {item}\n" in result.stderr
    assert "nothing" not in result.stderr


def test_a_line_that_an_item_prints_is_in_a_notebook_once(tmp_path):
    """A kernel that shows what comes to its files shows a worker's lines once, with the worker's name."""
    cell = """
    from espnet3 import parallel

    def prints(idx):
        print("printed", idx)

    results = parallel.run(prints, range(4), n_workers=2, progress=False)
    import os
    os.write(1, b"the last line\\n")  # what comes to this file is shown in its order
    """
    with notebook(tmp_path) as run:
        said = run(textwrap.dedent(cell), until="the last line")
    lines = sorted(re.sub(r"worker \d", "worker N", line) for line in said.splitlines())
    assert lines == [*(f"[worker N] printed {idx}" for idx in range(4)), "the last line"]


def test_standard_streams_travel_by_name(monkeypatch):
    """A function that holds standard output finds the worker's there, also while another stream stands in for it."""
    stream = sys.stdout
    assert pickle.loads(pickling.dumps(stream)) is stream
    monkeypatch.setattr(sys, "stdout", LineStream(stream, lambda *_: False))
    assert pickle.loads(pickling.dumps(stream)) is sys.stdout
    assert pickle.loads(pickling.dumps(sys.stdout)) is sys.stdout
