"""Items that the user's code changes in place: a run folder has them as they were given."""

import copy
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espnet3.parallel import IncompleteRunError, ItemError, get_client, parallel_map, run, set_parallel
from tests.components.needed import needed
from tests.parallel.durable.work import ChangedFiles, Changes, Provider, calls
from tests.parallel.pilots.as_tasks import have_tasks

N = 9
ITEMS = [{"id": i, "source": {"words": ["a"] * (i + 1)}} for i in range(N)]
BATCHES = {"batch_size": 2}


@pytest.fixture(params=["here", "workers", "tasks"])
def _where(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run in this process, on two workers, or as tasks of a client."""
    set_parallel({"env": "local", "n_workers": 1 if request.param == "here" else 2})
    with get_client() if request.param == "tasks" else nullcontext() as client:
        if client is not None:
            have_tasks(client)
        yield


def check(kind: type[Changes], folder: Path, **options: Any) -> None:
    """Have item 3 stop a run, be tried twice in the next two, and be found done in the last one."""
    items, stop = copy.deepcopy(ITEMS), folder / "stop"
    config = {"log": str(folder / "log"), "stop": str(stop)}

    def results(**more: Any) -> Any:
        found = kind(Provider(config), output_dir=folder / "run", progress=False, **options, **more)(items)
        return found.merge() if options.get("async_mode") and found.wait(600) else found

    stop.write_text("always")
    with pytest.raises((ItemError, IncompleteRunError), match="stopped at 3"):
        results()
    files = [path.read_text() for path in (folder / "run").rglob("errors.jsonl")]
    assert {str(json.loads(line)["index"]) for text in files for line in text.splitlines()} == {str(ITEMS[3])}
    again = {"on_error": "record", "retry_failed": True, "max_retries": 1}
    (failure,) = results(**again).failures
    assert (failure.index, failure.message, failure.attempts) == (ITEMS[3], "stopped at 3", 2)
    stop.write_text("once")
    assert list(results(**again)) == [*range(N)] and not stop.exists()
    called = calls(folder / "log")
    assert list(results()) == [*range(N)] and calls(folder / "log") == called
    lines = (folder / "run/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == items == ITEMS


@pytest.mark.usefixtures("_where")
@pytest.mark.parametrize("options", [{}, BATCHES, {**BATCHES, "seed": 3}], ids=["single", "batches", "seed"])
@pytest.mark.parametrize("kind", [Changes, ChangedFiles])
def test_a_run_has_the_items_as_they_were_given(
    kind: type[Changes], options: dict[str, Any], tmp_path: Path
) -> None:
    """In lines, failures, retries and restarts, with writer hooks and without; the caller's own list is unchanged."""
    check(kind, tmp_path, **options)


@pytest.mark.parametrize(("kind", "options"), [(Changes, {}), (Changes, BATCHES), (ChangedFiles, {})])
def test_detached_jobs_have_the_items_as_they_were_given(
    kind: type[Changes], options: dict[str, Any], tmp_path: Path
) -> None:
    """In their lines, failures, retries and restarts, too."""
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1}})
    check(kind, tmp_path, async_mode=True, **options)


def test_arrays_and_what_tuples_hold_are_as_they_were_given(tmp_path: Path) -> None:
    """Such items, also within others, are changed for the call alone, with the order of their memory."""
    order = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    items = [order, ("a", [order]), {"x": {"y": order}}, [1, 2], ("a", 1), "text", tmp_path, None]

    def change(item: Any) -> Any:
        found = item[1][0] if isinstance(item, tuple) and item[1] != 1 else item
        found = found["x"]["y"] if isinstance(found, dict) else found
        if isinstance(found, list):
            found.clear()
        elif isinstance(found, np.ndarray):
            assert found.flags.f_contiguous
            found += 1
            return float(found.sum())
        return None

    for _ in range(2):
        found = run(change, items, output_dir=tmp_path / "run", progress=False)
        assert list(found) == [21.0, 21.0, 21.0, None, None, None, None, None]
    assert order.sum() == 15 and items[3] == [1, 2]


def test_a_tensor_is_as_it_was_given(tmp_path: Path) -> None:
    """One that is changed in place, and one whose gradient is asked for."""
    torch = needed("torch")

    def change(item: Any) -> float:
        if item.requires_grad:
            (item * 3).sum().backward()
            return float(item.grad.sum())
        return float(item.add_(1).sum())

    items = [*torch.zeros(2, 3).unbind(), torch.ones(2, requires_grad=True)]
    assert list(run(change, items, output_dir=tmp_path, progress=False)) == [3.0, 3.0, 6.0]
    assert [float(item.detach().sum()) for item in items] == [0, 0, 2] and items[2].grad is None


def test_without_a_run_folder_a_call_in_this_process_gets_the_callers_own_objects() -> None:
    """What it does to them, the caller sees."""
    items: list[Any] = [{"id": 1}, [2]]
    found = parallel_map(lambda item: item, items)
    assert all(one is other for one, other in zip(items, found, strict=True))
    assert list(run(lambda item: item.clear() or 1, items, progress=False)) == [1, 1] and items == [{}, []]
