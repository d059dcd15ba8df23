"""Audio files by hooks: every wav file of a folder at another rate, and a list of what was written."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import soundfile

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel


class Recordings(EnvironmentProvider):
    """The files of a folder, in the order of their names."""

    def build_env_local(self) -> dict[str, object]:
        """List them."""
        return {"files": sorted(Path(self.config["folder"]).glob("*.wav")), "rate": self.config["rate"]}


class Resample(BaseRunner):
    """Writes each recording at another rate; a worker that dies costs nothing but its shard's time."""

    @staticmethod
    def forward(idx: int, files: list[Path], rate: int) -> tuple[str, np.ndarray, int]:
        """Return name, samples and rate of one recording."""
        samples, before = soundfile.read(files[idx], dtype="float32")
        times = np.arange(int(len(samples) * rate / before)) / rate
        return files[idx].stem, np.interp(times, np.arange(len(samples)) / before, samples), rate

    @staticmethod
    def open_writers(shard_dir: Path):
        """Open the list of a shard; its audio files stand beside it."""
        return open(shard_dir / "wav.scp", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result: tuple[str, np.ndarray, int], state) -> None:
        """Write one recording, and its line."""
        name, samples, rate = result
        path = Path(writers.name).parent / f"{name}.flac"
        soundfile.write(path, samples, rate)
        writers.write(f"{name} {path}\n")

    def merge(self, shard_dirs: list[Path]) -> str:
        """Return the list of all, in the order of the indices."""
        return "".join((folder / "wav.scp").read_text(encoding="utf-8") for folder in shard_dirs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=int, default=8000)
    args = parser.parse_args()
    set_parallel({"env": "local", "n_workers": 2})
    recordings = Recordings({"folder": str(args.folder.absolute()), "rate": args.rate})
    n = len(recordings.build_env_local()["files"])
    print(Resample(recordings, output_dir="runs/resampled")(range(n)), end="")
