"""Batched inference: a torch model that each worker loads once, over items in batches of 32."""

from __future__ import annotations

import argparse

import torch

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel


class Model(EnvironmentProvider):
    """The model and the data, once per process."""

    def build_env_local(self) -> dict[str, object]:
        """Load them; here a small network with fixed weights stands for yours."""
        torch.manual_seed(0)
        torch.set_num_threads(1)  # the workers share the cores
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        data = torch.randn(self.config["items"], 16, generator=torch.Generator().manual_seed(1))
        return {"model": model.to(device).eval(), "data": data, "device": device}


class Classify(BaseRunner):
    """The class of each item."""

    @staticmethod
    def forward(idx: int, model: torch.nn.Module, data: torch.Tensor, device: str) -> int:
        """Classify one item: also what a batch falls back to where one of it fails."""
        return Classify.batch_forward([idx], model, data, device)[0]

    @staticmethod
    def batch_forward(
        indices: list[int], model: torch.nn.Module, data: torch.Tensor, device: str
    ) -> list[int]:
        """Classify a batch; where it does not fit into a GPU's memory, it is halved, and that size is kept."""
        with torch.inference_mode():
            return model(data[indices].to(device)).argmax(dim=1).tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    # one worker per GPU: set_parallel({"env": "local_gpu"})
    set_parallel({"env": "local", "n_workers": args.workers})
    classes = Classify(Model({"items": args.items}), batch_size=32)(range(args.items))
    print({name: classes.count(name) for name in range(4)})
