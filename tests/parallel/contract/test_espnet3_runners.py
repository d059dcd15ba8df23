"""Runners written as those of ESPnet3's own recipes are run as they are, and lose nothing: everywhere."""

import json
import os
import warnings

import pytest

from espnet3.parallel import BaseRunner, set_parallel
from tests.parallel.contract import espnet3_runners as runners
from tests.parallel.contract.helpers import TWO, beside_espnet

LINES = [str(3 * x) for x in range(10)]


@pytest.fixture(params=["in-process", "two-workers", "detached"])
def mode(request):
    """Where a runner is called: in process, on two workers, or without a driver."""
    return request.param


@pytest.fixture
def call(mode, tmp_path):
    """A function that runs a runner class to the end of its merge, in the mode."""

    def run(cls, indices=range(10), provider=None, **options):
        options = {"output_dir": tmp_path / "run", "progress": False, **options}
        provider = provider or runners.Provider()
        set_parallel(None if mode == "in-process" else TWO)
        if mode != "detached":
            return cls(provider, **options)(indices)
        run = cls(provider, async_mode=True, async_specs_dir=tmp_path / "specs", **options)(indices)
        try:
            status = run.wait(timeout=600)
            assert status.done, "\n".join(text for _, text in run.logs())
            # another process's merge: it makes the runner again
            return type(run).open(run.path).merge()
        finally:
            run.cancel()

    return run


# --- writers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "names"), [(runners.OneWriter, "a"), (runners.NestedWriters, "ab")])
def test_every_writer_is_closed_by_default(cls, names, call):
    """What open_writers returned is closed before a shard is done: one writer, a mapping, lists and tuples in one."""
    assert call(cls, shard_subdir="test/clean") == dict.fromkeys(names, LINES)


def test_the_default_write_record_gathers_results_and_the_folder_is_in_the_env(call):
    """Hooks and forward that name output_dir, shard_subdir and shard_id get them, and state["records"] the results."""
    found = call(runners.NamesFolders, range(5), shard_subdir="test")
    assert [records for records, *_ in found] == [[["run", "test", number, 3]] for number in range(5)]
    for number, (_, names, shard_id, shard_dir) in enumerate(found):
        assert names == ["factor", "output_dir", "shard_id", "shard_subdir"]
        assert shard_id == number
        assert shard_dir.endswith(f"run/test/split.{number}")


@pytest.mark.parametrize(("cls", "names"), [(runners.States, "ab"), (runners.OwnStates, "a")])
def test_overridden_state_hooks_are_called_in_place_of_the_writer_hooks(cls, names, call):
    """Those that call the base's keep the writers, beside their own state; others need none, and hold any object."""
    assert call(cls) == dict.fromkeys(names, LINES)  # ten shards of one item: each sum is its item


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [runners.OneWriter, runners.Lists])
def test_without_batch_forward_a_batch_size_has_no_effect(cls, call):
    """Where ESPnet is not installed forward is given one index, whatever it could take, and a warning says so."""
    with pytest.warns(UserWarning, match="batch_size=4 has no effect"):
        assert call(cls, batch_size=4) == {"a": LINES}


def test_batch_forward_may_be_forward(call):
    """`batch_forward = forward` asks for batches whose results are written index by index, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert call(runners.ListsInBatches, batch_size=4) == {"a": LINES}


# --- beside the files -----------------------------------------------------------------------------


def test_the_manifest_says_how_a_run_is_cut(call, tmp_path, monkeypatch):
    """manifest.json beside run.json has the shards with their items, lists beside ESPnet; each folder has a done."""
    beside_espnet(monkeypatch, tmp_path)
    found = call(runners.Lists, shard_subdir="test", batch_size=4)
    assert found == {"a": ["[0,3,6,9]", "[12,15,18,21]", "[24,27]"]}
    folder = tmp_path / "run" / "test"
    assert (folder / "run.json").exists()
    assert json.loads((folder / "manifest.json").read_bytes()) == {
        "version": 1,
        "output_dir": str(tmp_path / "run"),
        "shard_subdir": "test",
        "shards": [
            {"shard_id": 0, "items": [[0, 1, 2, 3]]},
            {"shard_id": 1, "items": [[4, 5, 6, 7]]},
            {"shard_id": 2, "items": [[8, 9]]},
        ],
    }
    assert all((folder / f"split.{number}" / "done").exists() for number in range(3))


@pytest.mark.parametrize(("n", "items"), [(1, [[0]]), (2, [[0, 1]]), (3, [[0, 1, 2]]), (4, [[0, 1], [2, 3]])])
def test_few_items_go_two_to_a_shard(n, items, tmp_path):
    """Up to four items are cut as ESPnet3's own tests expect, the same for any number of workers."""
    for workers in (1, 2):
        set_parallel({"env": "local", "n_workers": workers})
        where = tmp_path / str(workers)
        runners.OneWriter(runners.Provider(), output_dir=where, progress=False)(range(n))
        shards = json.loads((where / "manifest.json").read_bytes())["shards"]
        assert [shard["items"] for shard in shards] == items
        assert sorted(path.name for path in where.glob("split.*")) == [
            f"split.{i}" for i in range(len(items))
        ]


def test_a_folder_of_espnet3s_own_layer_is_refused_by_name(tmp_path):
    """What ESPnet3's own layer left is no run of this one: refused; resume=False moves it aside."""
    (tmp_path / "split.0").mkdir()
    (tmp_path / "split.0" / "lock").write_text("123\n")
    (tmp_path / "manifest.json").write_text('{"version": 1, "shards": [{"shard_id": 0, "items": [0, 1, 2]}]}')
    with pytest.raises(RuntimeError, match=r"holds a run of ESPnet3's own layer .*lock.* resume=False"):
        runners.OneWriter(runners.Provider(), output_dir=tmp_path, progress=False)(range(3))
    assert sorted(path.name for path in (tmp_path / "split.0").iterdir()) == ["lock"]
    again = runners.OneWriter(runners.Provider(), output_dir=tmp_path, resume=False, progress=False)
    assert again(range(3)) == {"a": LINES[:3]}
    assert (tmp_path / "old.0" / "split.0").is_dir() and (tmp_path / "old.0" / "manifest.json").exists()


def test_every_worker_has_an_id_in_its_environment(call, mode, monkeypatch):
    """DASK_WORKER_ID is one for each worker, there before the env is built; the driver's own process has none."""
    # another test may have run a Dask worker in this process
    monkeypatch.delenv("DASK_WORKER_ID", raising=False)
    found = call(runners.WorkerIds, range(40), provider=runners.NotesWorkerId())
    ids = {}
    for pid, at_setup, now in found:
        assert at_setup == now
        ids.setdefault(pid, set()).add(now)
    assert all(len(names) == 1 for names in ids.values())
    assert len(set.union(*ids.values())) == len(ids)
    assert "DASK_WORKER_ID" not in os.environ
    assert ids.get(os.getpid()) == ({None} if mode == "in-process" else None)


# --- the call -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["forward", "write_record", "reduce_state"])
def test_a_method_of_its_own_class_is_still_refused(name):
    """A hook defined with self is a TypeError at the class statement, also one that another class defined so."""

    class Other:
        def write(self, *args):
            return args

    def hook(self, *args):
        return args

    with pytest.raises(TypeError, match=f"{name} must be static"):
        type("Wrong", (BaseRunner,), {name: hook})
    with pytest.raises(TypeError, match=f"{name} must be static"):
        type("Wrong", (BaseRunner,), {name: Other.write})
