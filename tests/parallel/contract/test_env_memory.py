"""What a call leaves in memory: no env, in workers that go on, and nothing of its caller."""

import gc
import os
import weakref
from contextlib import suppress

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, ItemError, WorkerSetupError, parallel_map

MODELS = weakref.WeakSet()  # of this process


class Model:
    def __init__(self):
        MODELS.add(self)


class Keeps(EnvironmentProvider):
    def build_env_local(self):
        gc.disable()  # a model has few objects, for which no collection begins
        self.model = Model()
        return {"model": self.model}


class Fails(Keeps):
    def build_env_local(self):
        super().build_env_local()
        raise OSError("no such file")


class Uses(BaseRunner):
    @staticmethod
    def forward(idx, model):
        if idx == 3:
            try:
                raise KeyError(idx)
            except KeyError as error:
                raise ValueError(str(model)) from error
        return idx

    @staticmethod
    def batch_forward(indices, model):
        return [Uses.forward(idx, model) for idx in indices]


class Returns(Uses):
    @staticmethod
    def forward(idx, model):
        sum(range(1_000_000))  # it is watched meanwhile
        return Uses.forward(idx, model) and Model()


class Writes(Uses):
    @staticmethod
    def open_writers(shard_dir, model):
        return model

    @staticmethod
    def close_writers(writers, state, model):
        pass


def models_here(_):
    return os.getpid(), len(MODELS)


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_left_out():
    """What earlier tests have made is looked at once, and not by each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def collected():
    """Begin and end without garbage, and collect it again."""
    gc.collect()
    yield
    gc.enable()
    gc.collect()


CALLS = {
    "timed": (Returns, Keeps, {"on_error": "record", "item_timeout": 60.0}),
    "batches": (Uses, Keeps, {"on_error": "record", "batch_size": 2}),
    "raised-after-retries": (Uses, Keeps, {"max_retries": 2}),
    "not-built": (Uses, Fails, {}),
    "writers": (Writes, Keeps, {"on_error": "record", "output_dir": "run"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_env_is_gone_after_its_call(place, call, tmp_path, monkeypatch):
    """However a runner's call ends, its env is in no process any more when the next call runs there."""
    monkeypatch.chdir(tmp_path)
    runner, provider, options = CALLS[call]
    for attempt in range(2):
        if "output_dir" in options:
            options = {**options, "output_dir": tmp_path / f"run{attempt}"}
        with suppress(ItemError, WorkerSetupError):
            runner(provider({}), progress=False, **options)(range(9))
    assert {models for _, models in parallel_map(models_here, range(50))} == {0}


def test_nothing_of_a_caller_lives_on():
    """A provider that is made, changed and used keeps its caller's variables no longer than the caller does."""

    def call(argument):
        large = Model()
        provider = Keeps({})
        provider.beam = 5
        with pytest.raises(ItemError):
            Uses(Keeps({}), progress=False)(range(9))
        alive = weakref.ref(large)
        del large
        return alive, weakref.ref(provider)

    gc.disable()
    local, provider = call(Model())
    assert local() is None and provider() is None and not MODELS
