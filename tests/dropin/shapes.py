"""Providers and runners in the shapes of public recipes of ESPnet3, written anew, to be run with its own layer or ours.

    python tests/dropin/shapes.py FOLDER

prints a line for each: its name and what came of it. `docs/generated/espnet3-shapes.md` has both layers' answers.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from espnet3.parallel import parallel
from espnet3.parallel.base_runner import BaseRunner, concatenate_shard_files
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.parallel import get_client, get_parallel_config, wrap_func_with_worker_env

BIG = 1 << 18  # numbers of an array of 1 MB
N = 3


class Provider(EnvironmentProvider):
    """Gives the entries of its config."""

    def build_env_local(self) -> dict[str, Any]:
        return dict(self.config)

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        config = dict(self.config)
        return lambda: config


class Written(BaseRunner):
    """Writes the results of a shard to a file, and returns the lines of all."""

    @staticmethod
    def forward(idx: Any, **env: Any) -> Any:
        return idx

    @staticmethod
    def open_writers(shard_dir: Any, **env: Any) -> Any:
        return {"folder": shard_dir, "file": (shard_dir / "text").open("w")}

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        writers["file"].write(json.dumps(result) + "\n")

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        writers["file"].close()

    def merge(self, shard_dirs: list[Path]) -> Any:
        done = [folder for folder in shard_dirs if self.is_shard_done(folder)]
        out = Path(str(self.output_dir), self.shard_subdir, "text")
        return out.read_text().split("\n")[:-1] if concatenate_shard_files(done, "text", out) else []


class Embeddings(BaseRunner):
    """Saves each embedding itself, where the provider says, and returns how it went: one, or a list for a list."""

    @staticmethod
    def forward(idx: Any, target: str, **env: Any) -> Any:
        if isinstance(idx, list):
            return [Embeddings.forward(one, target) for one in idx]
        np.save(Path(target) / f"{idx}.npy", np.full(4, idx))
        return "ok"


class Features(Written):
    """Writes arrays of 1 MB; there is nothing to merge."""

    @staticmethod
    def forward(idx: int, **env: Any) -> Any:
        return np.full(BIG, idx, np.float32)

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        np.save(writers["folder"] / f"{result[0]:.0f}.npy", result)

    merge = BaseRunner.merge


class Converted(BaseRunner):
    """Takes rows of a table, and writes beside the run's own files; it has no hooks."""

    @staticmethod
    def forward(item: dict[str, Any], output_dir: str, **env: Any) -> Any:
        path = Path(output_dir) / item["name"]
        path.write_text("converted")
        return str(path)


class Artefacts(Written):
    """Puts an array beside its shard's list, which names it by its path."""

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        path = writers["folder"] / f"u{result}.npy"
        np.save(path, np.zeros(2))
        writers["file"].write(f"u{result} {path.as_posix()}\n")


class Tensors(BaseRunner):
    @staticmethod
    def forward(idx: int, **env: Any) -> Any:
        import torch

        return torch.ones(2) * idx


class Counted(Written):
    """Notes each call; the third fails as long as there is a file `broken`."""

    @staticmethod
    def forward(idx: int, target: str, **env: Any) -> Any:
        with open(Path(target) / "calls", "a") as calls:
            calls.write(f"{idx}\n")
        if idx == 2 and Path(target, "broken").exists():
            raise OSError("the disk is away")
        return idx


def local(workers: int) -> Any:
    return OmegaConf.create({"env": "local", "n_workers": workers, "options": {"processes": False}})


def plus(x: int, offset: int) -> int:
    return x + offset


def xvectors(target: str) -> Any:
    found = Embeddings(Provider({"target": target}), batch_size=2, output_dir="run")(range(N))
    return _listed(found), len(list(Path(target).glob("*.npy")))


def knnvc(target: str) -> Any:
    found = Features(Provider({}), output_dir="run")(range(N))
    return _listed(found), sum(np.load(file).size == BIG for file in Path("run").glob("split.*/*.npy"))


def language_id(target: str) -> Any:
    return Written(Provider({}), output_dir="run", shard_subdir="train")([[0, 1], [2]])


def meld(target: str) -> Any:
    found = Converted(Provider({}), output_dir="run")([{"name": "a.wav"}, {"name": "b.wav"}])
    return _listed(found), sorted(path.name for path in Path("run").glob("*.wav"))


def long_short(target: str) -> Any:
    for _ in range(3):
        found = Written(Provider({}), batch_size=2, output_dir="run", resume=False)(range(N))
    return found, len(list(Path("run").glob("old*")))


def codec(target: str) -> Any:
    return Artefacts(Provider({}), output_dir="run")(range(2))


def voxceleb(target: str) -> Any:
    """Download as a dataset builder does: in threads where no `parallel` block is registered."""
    return "in threads" if get_parallel_config() is None else "by a runner"


def falar(target: str) -> Any:
    return Written(Provider({}), output_dir="run")([])


def minimal(target: str) -> Any:
    return _listed(Tensors(Provider({}), output_dir="run")(range(2)))


def cut_off(target: str) -> Any:
    """Fail at the third item on one worker, and go on with two."""
    Path(target, "broken").touch()
    called = []
    for workers in (1, 2):
        parallel.set_parallel(local(workers))
        try:
            called.append(Counted(Provider({"target": target}), output_dir="run")(range(N)))
        except OSError:
            called.append("OSError")
        except RuntimeError as error:  # theirs refuses a run on another number of workers
            called.append(str(error).partition(".")[0])
        Path(target, "broken").unlink(missing_ok=True)
    return called


def touched(target: str) -> Any:
    for _ in range(2):
        Counted(Provider({"target": target}), output_dir="run")(range(N))
        os.utime(__file__)
    return len(Path(target, "calls").read_text().split())


def client(target: str) -> Any:
    with get_client(local(1), setup_fn=lambda: {"offset": 10}) as opened:
        return opened.gather(opened.map(wrap_func_with_worker_env(plus), range(N)))


SHAPES: dict[str, Callable[[str], Any]] = {
    "x-vectors": xvectors,
    "kNN-VC features": knnvc,
    "language-id shapes": language_id,
    "MELD conversion": meld,
    "long/short removal": long_short,
    "codec inference": codec,
    "VoxCeleb download": voxceleb,
    "FalAR download": falar,
    "the documents' minimal example": minimal,
    "a run cut off": cut_off,
    "a tree with new times": touched,
    "get_client": client,
}


def outcome(name: str, folder: Path, block: Any = None) -> str:
    """Run a shape with a `parallel` block in a new folder, the working directory meanwhile; return what came of it."""
    parallel.parallel_config = block
    here, inside = Path.cwd(), folder / name.replace(" ", "-").replace("/", "-")
    (inside / "target").mkdir(parents=True)
    os.chdir(inside)
    try:
        return str(SHAPES[name](str(inside / "target")))
    finally:
        os.chdir(here)
        parallel.parallel_config = None  # theirs makes one of `set_parallel(None)`


def _listed(found: Any) -> Any:
    return None if found is None else [one.tolist() if hasattr(one, "tolist") else one for one in found]


if __name__ == "__main__":
    for shape in SHAPES:
        print(shape, outcome(shape, Path(sys.argv[1])), sep=" | ", flush=True)
