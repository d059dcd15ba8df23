"""Runners written as those of ESPnet3's own recipes are; jobs import them from here by name."""

import json
import os
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.base_runner import concatenate_shard_files


class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"factor": 3}


def opened(shard_dir, name):
    """Open a file with a buffer that none of these runs fills."""
    return open(shard_dir / name, "w", encoding="utf-8", buffering=1 << 20)


class OneWriter(BaseRunner):
    """Opens writers and writes to them; nothing of its own closes them."""

    @staticmethod
    def forward(idx, factor):
        return factor * idx

    @staticmethod
    def open_writers(shard_dir):
        return opened(shard_dir, "a")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(f"{result}\n")

    def merge(self, shard_dirs):
        folder = self.output_dir / self.shard_subdir
        found = {}
        for name in ("a", "b"):
            if concatenate_shard_files(shard_dirs, name, folder / f"{name}.txt"):
                found[name] = (folder / f"{name}.txt").read_text().split()
        return found


class NestedWriters(OneWriter):
    @staticmethod
    def open_writers(shard_dir):
        return {"texts": [opened(shard_dir, "a"), (opened(shard_dir, "b"),)], "count": 0}

    @staticmethod
    def write_record(writers, result, state):
        first, (second,) = writers["texts"]
        first.write(f"{result}\n")
        second.write(f"{result}\n")


class Lists(OneWriter):
    """A `forward` for one index or a list of them, and hooks that take either."""

    @staticmethod
    def forward(idx, factor):
        return [factor * one for one in idx] if isinstance(idx, list) else factor * idx

    @staticmethod
    def write_record(writers, result, state):
        writers.write(json.dumps(result, separators=(",", ":")) + "\n")


class ListsInBatches(Lists):
    batch_forward = Lists.forward


class NamesFolders(BaseRunner):
    """Names what the run folder adds to the env, in each function; writes it, and gathers the results in the state."""

    @staticmethod
    def forward(idx, factor, output_dir, shard_subdir, shard_id):
        return [Path(output_dir).name, shard_subdir, shard_id, factor]

    @staticmethod
    def open_writers(shard_dir, output_dir, shard_subdir, shard_id, **env):
        assert Path(output_dir, shard_subdir, f"split.{shard_id}") == shard_dir, (output_dir, shard_dir)
        assert env == {"factor": 3}, env
        return shard_dir

    @staticmethod
    def close_writers(writers, state, **env):
        facts = [state["records"], sorted(env), state["shard_id"], state["shard_dir"]]
        (writers / "facts.json").write_text(json.dumps(facts))

    def merge(self, shard_dirs):
        return [json.loads((folder / "facts.json").read_text()) for folder in shard_dirs]


class States(OneWriter):
    @classmethod
    def init_state(cls, shard_id, output_dir, shard_subdir, **env):
        return {**super().init_state(shard_id, output_dir, shard_subdir, **env), "sum": 0}

    @classmethod
    def reduce_state(cls, state, result, **env):
        state = super().reduce_state(state, result, **env)
        return {**state, "sum": state["sum"] + result}

    @classmethod
    def finalize_state(cls, state, **env):
        state = super().finalize_state(state, **env)
        (Path(state["shard_dir"]) / "b").write_text(f"{state['sum']}\n")
        return state


class OwnStates(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return factor * idx

    @classmethod
    def init_state(cls, output_dir, shard_subdir, shard_id):
        return opened(Path(output_dir, shard_subdir, f"split.{shard_id}"), "a")

    @classmethod
    def reduce_state(cls, state, result):
        state.write(f"{result}\n")
        return state

    @classmethod
    def finalize_state(cls, state):
        state.close()

    merge = OneWriter.merge


class NotesWorkerId(EnvironmentProvider):
    """An env with the worker's id as it is while the env is built."""

    def build_env_local(self):
        return {"at_setup": os.environ.get("DASK_WORKER_ID")}


class WorkerIds(BaseRunner):
    @staticmethod
    def forward(idx, at_setup):
        return [os.getpid(), at_setup, os.environ.get("DASK_WORKER_ID")]
