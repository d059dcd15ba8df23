"""`python -m benchmarks.gpu`: recordings a second on GPUs, and how busy these are, beside what people write by hand.

The recipe's character model, which has learned nothing, decodes noise of 1 to 6 s: one by one and in batches in a plain
loop, in batches of features that the processes of a `DataLoader` compute, and by a runner on `env: local_gpu`, one
worker a GPU. With `--device cpu` the programs are rehearsed where there is no GPU, which measures nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.tables import grid, number
from tests.gpu.decoding import Decode, Recordings, recogniser, recordings, write_weights

Way = Callable[[], tuple[list[str], float]]

BATCH = 16
LOADERS = 4
LOOK = 0.1  # seconds between looks at the GPUs


@contextmanager
def watched(device: str) -> Iterator[list[float]]:
    """Note how busy the GPUs are meanwhile, as NVML says: percent, a mean over all of them for each look."""
    if device == "cpu":
        yield []
        return
    import pynvml

    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())]
    with report.sampled(
        lambda: statistics.mean(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus), LOOK
    ) as seen:
        yield seen
    pynvml.nvmlShutdown()


class Features:
    """A dataset of features, for a `DataLoader`."""

    def __init__(self, speech: Sequence[Any]) -> None:
        self.speech = speech

    def __len__(self) -> int:
        return len(self.speech)

    def __getitem__(self, idx: int) -> Any:
        import torch

        from src.features import LogMel

        return torch.from_numpy(LogMel()(self.speech[idx])).double()


def ways(weights: str, n: int, device: str, workers: int) -> dict[str, Way]:
    """Return what is timed; each returns all texts, and how many seconds its processes took to start."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from espnet3.parallel import set_parallel

    model, speech = recogniser(weights, device), recordings(n)
    from src.ctc import best_path

    def one_by_one() -> tuple[list[str], float]:
        return [model(one) for one in speech], 0.0

    def in_batches() -> tuple[list[str], float]:
        return [text for at in range(0, n, BATCH) for text in model(speech[at : at + BATCH])], 0.0

    def loader() -> tuple[list[str], float]:
        texts: list[str] = []
        batches = torch.utils.data.DataLoader(
            Features(speech),
            BATCH,
            num_workers=LOADERS,
            collate_fn=list,  # type: ignore[arg-type]
        )
        with torch.inference_mode():
            for feats in batches:
                lengths = torch.tensor([len(one) for one in feats], device=device)
                scores, frames = model.model.scores(pad_sequence(feats, batch_first=True).to(device), lengths)
                texts += [best_path(one[:k]) for one, k in zip(scores.cpu(), frames.tolist(), strict=True)]
        return texts, 0.0

    def ours() -> tuple[list[str], float]:
        set_parallel({"env": "local" if device == "cpu" else "local_gpu", "n_workers": workers})
        provider = Recordings({"weights": weights, "device": device, "n": n})
        runner = Decode(provider, batch_size=BATCH, progress=False)
        texts = [one["text"] for one in runner(range(n))]
        assert runner.summary is not None
        return texts, runner.summary.start_seconds

    return {
        "a plain loop": one_by_one,
        f"a loop over batches of {BATCH}": in_batches,
        f"DataLoader, {LOADERS} processes": loader,
        f"a runner, {workers} of local_gpu": ours,
    }


def measure(n: int, rounds: int, device: str) -> dict[str, dict[str, list[float]]]:
    """Time each way in turn; all must write the same.

    Returns:
        By the way a value for each round: `seconds` without the start of processes that load a model, `start` of these,
        and `busy`, the share of that time for which the GPUs computed; nothing where there is no GPU.
    """
    import torch

    workers = 2 if device == "cpu" else torch.cuda.device_count()
    if not workers:
        raise SystemExit("torch sees no GPU on this machine (--device cpu rehearses without one)")
    with tempfile.TemporaryDirectory() as folder:
        found = ways(
            write_weights(Path(folder, "model.pth")), n, "cpu" if device == "cpu" else "cuda:0", workers
        )
        expected, _ = next(iter([call() for call in found.values()]))  # each once: kernels are chosen
        figures: dict[str, dict[str, list[float]]] = {
            way: {"seconds": [], "start": [], "busy": []} for way in found
        }
        for _ in range(rounds):
            for way, call in found.items():
                with watched(device) as busy:
                    begin = time.perf_counter()
                    texts, start = call()
                    seconds = time.perf_counter() - begin - start
                if texts != expected:
                    raise RuntimeError(f"{way} writes something else")
                figures[way]["seconds"].append(seconds)
                figures[way]["start"].append(start)
                if at_work := busy[int(start / LOOK) :]:
                    figures[way]["busy"].append(statistics.mean(at_work) / 100)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = report.arguments("gpu", __doc__, recordings=2000, rounds=3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default %(default)s")
    args = parser.parse_args(argv)
    figures = measure(args.recordings, args.rounds, args.device)
    rows = []
    for way, each in figures.items():
        middle = {name: statistics.median(values) for name, values in each.items() if values}
        busy = f"{middle['busy']:.0%}" if "busy" in middle else ""
        rows.append([way, number(args.recordings / middle["seconds"]), busy, number(middle["start"])])
    print(grid(["way", "recordings a second", "GPUs busy", "start, s"], rows))
    content = {"device": args.device, "recordings": args.recordings}
    report.write(args.out, ["torch", "distributed"], **content, figures=figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
