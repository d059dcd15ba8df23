"""A program of two ranks: each trains nothing, and then calls the same runner. Run as a script by the tests."""

import json
import os
import sys
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel


class Provider(EnvironmentProvider):
    """Names the folder of the log, and an item that fails."""

    def build_env_local(self):
        return dict(self.config)


def note(folder, text):
    with open(Path(folder) / "log", "a") as file:
        file.write(f"{text}\n")


class Squares(BaseRunner):
    @staticmethod
    def forward(idx, folder, bad):
        note(folder, idx)
        if idx == bad:
            os.kill(os.getpid(), 9) if bad == 13 else None
            raise ValueError(f"no square of {idx}")
        return idx * idx


class Writes(Squares):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "out", "w")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(f"{result}\n")

    def merge(self, shard_dirs):
        note(self.provider.config["folder"], "merged")
        return [int(line) for folder in shard_dirs for line in (folder / "out").read_text().split()]


def main(kind, folder, options):
    """Run ten items, twice where asked to, and print the results."""
    config = {"folder": folder, "bad": options.pop("bad", None)}
    set_parallel({"env": "local", "n_workers": options.pop("n_workers", 1)})
    runner = {"Squares": Squares, "Writes": Writes}[kind](Provider(config), progress=True, **options)
    if runner.async_mode:
        run = runner(range(10))
        print(json.dumps([str(run.path), len(run)]))
        run.wait(600)
        return
    print(json.dumps(list(runner(range(10)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
