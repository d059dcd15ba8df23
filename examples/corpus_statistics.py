"""Statistics of a corpus: mean and deviation per feature, the same to the bit on any number of workers."""

from __future__ import annotations

import argparse
import math

import numpy as np

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel


class Corpus(EnvironmentProvider):
    """The features of a corpus; drawn here, read from disk in your case."""

    def build_env_local(self) -> dict[str, object]:
        """Return what opens one utterance: the corpus itself is not sent to workers."""
        return {"dimensions": self.config["dimensions"]}


class Sums(BaseRunner):
    """Count, sum and sum of squares of each utterance."""

    @staticmethod
    def forward(idx: int, dimensions: int) -> dict[str, object]:
        """Return those of one utterance."""
        draw = np.random.default_rng(idx)
        frames = draw.normal(loc=3.0, scale=2.0, size=(100 + idx % 50, dimensions))
        return {"n": len(frames), "sum": frames.sum(0).tolist(), "squares": (frames**2).sum(0).tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    set_parallel({"env": "local", "n_workers": args.workers})
    sums = Sums(Corpus({"dimensions": 2}))(range(args.utterances))
    n = sum(one["n"] for one in sums)
    for k in range(2):
        # fsum rounds once, at the end; and results come in the order of the indices, whoever computed them
        mean = math.fsum(one["sum"][k] for one in sums) / n
        variance = math.fsum(one["squares"][k] for one in sums) / n - mean**2
        print(f"feature {k}: mean {mean!r}, deviation {math.sqrt(variance)!r}")
