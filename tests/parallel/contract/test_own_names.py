"""A subclass may call its methods and attributes what it likes: only the documented names mean something."""

import inspect

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

# What an implementation might call its methods and attributes.
NAMES = [
    *(
        "_run",
        "_task",
        "_batch",
        "_submit",
        "_identity",
        "_reporter",
        "_items",
        "_cost",
        "_config",
        "_client",
    ),
    *(
        "run",
        "task",
        "plan",
        "state",
        "policy",
        "folder",
        "items",
        "cost",
        "config",
        "client",
        "batch",
        "writes",
    ),
    *("outputs", "launch", "report", "submit", "compute", "hooks", "name"),
]
PUBLIC = {
    *("forward", "batch_forward", "open_writers", "write_record", "close_writers", "merge", "write_outputs"),
    *("init_state", "reduce_state", "finalize_state", "item_cost", "summary"),
}


def with_every_name(cls):
    """Give a class a number under each of NAMES: whoever calls or reads one of them gets that."""
    for at, name in enumerate(NAMES):
        setattr(cls, name, at)
    return cls


@with_every_name
class Provider(EnvironmentProvider):
    """Has the names as well; `config` alone is its base's."""

    def __init__(self, config):
        super().__init__(config)
        for name in set(NAMES) - {"config"}:
            setattr(self, name, None)

    def build_env_local(self):
        return {"factor": self.config["factor"]}


@with_every_name
class Times(BaseRunner):
    """Has every name on the class, and again on the instance."""

    def __init__(self, provider, **options):
        for name in NAMES:
            setattr(self, name, None)
        super().__init__(provider, **options)
        for name in NAMES:
            setattr(self, name, None)

    @staticmethod
    def forward(idx, factor):
        return factor * idx

    @staticmethod
    def batch_forward(indices, factor):
        return [factor * idx for idx in indices]


class Writes(Times):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "out.txt", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(f"{state['index']} {result}\n")

    def merge(self, shard_dirs):
        return [line for folder in shard_dirs for line in (folder / "out.txt").read_text().splitlines()]


def provider():
    return Provider({"factor": 3})


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("folder", "batch_size"), [(False, None), (True, 4)], ids=["list", "folder"])
def test_a_runner_with_any_names_computes(folder, batch_size, tmp_path):
    """A runner and a provider that use every name for themselves give their results, in process and on workers."""
    runner = Times(
        provider(), batch_size=batch_size, progress=False, output_dir=tmp_path / "run" if folder else None
    )
    assert list(runner(range(12))) == [3 * x for x in range(12)]
    assert runner.summary.items == 12


def test_a_runner_with_any_names_runs_detached(tmp_path):
    """So does one with writer hooks as detached jobs, and in the merge of another process's runner."""
    set_parallel({"env": "local", "n_workers": 2})
    folders = {"async_specs_dir": tmp_path / "specs", "output_dir": tmp_path / "run"}
    detached = Writes(provider(), async_mode=True, progress=False, **folders)(range(4))
    try:
        assert detached.wait(timeout=600).done, "\n".join(text for _, text in detached.logs())
        assert list(type(detached).open(tmp_path / "run").merge()) == ["0 0", "1 3", "2 6", "3 9"]
    finally:
        detached.cancel()


def test_the_base_has_no_names_but_the_documented_ones():
    """`BaseRunner` has its hooks, and on an instance its constructor's arguments: nothing that could collide."""
    own = {name for name in vars(BaseRunner) if not name.startswith("__") and name != "_abc_impl"}
    assert own == PUBLIC
    least = type("Least", (BaseRunner,), {"forward": staticmethod(lambda idx: idx)})
    arguments = set(inspect.signature(BaseRunner.__init__).parameters) - {"self"}
    assert set(vars(least(provider()))) == arguments
    assert list(inspect.signature(least).parameters)[:3] == ["provider", "batch_size", "output_dir"]
    assert list(inspect.signature(Times).parameters) == ["provider", "options"]  # for `help()` and editors
