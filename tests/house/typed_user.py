"""What a user writes: `make types` finds no error in it, with mypy --strict. It is not run."""

from pathlib import Path
from typing import Any

import espnet3.parallel
from espnet3.parallel import (
    BaseRunner,
    DetachedRun,
    EnvironmentProvider,
    InferenceProvider,
    ItemError,
    ItemFailure,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)


class Models(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {"factor": self.config["factor"]}


class Times(BaseRunner):
    @staticmethod
    def forward(idx: int, factor: int) -> int:
        return idx * factor

    @staticmethod
    def batch_forward(indices: list[int], factor: int) -> list[int]:
        return [idx * factor for idx in indices]


class Infers(InferenceProvider):
    @staticmethod
    def build_dataset(config: Any) -> list[int]:
        return [1, 2]

    @staticmethod
    def build_model(config: Any) -> Any:
        return abs


class Files(BaseRunner):
    @staticmethod
    def forward(idx: int) -> str:
        return str(idx)

    @staticmethod
    def open_writers(shard_dir: Path) -> Any:
        return {"text": (shard_dir / "text").open("w")}

    @staticmethod
    def write_record(writers: Any, record: Any, state: Any) -> None:
        writers["text"].write(record)

    def merge(self, shard_dirs: list[Path]) -> str:
        return "".join((each / "text").read_text() for each in shard_dirs)


def load() -> dict[str, Any]:
    return {"table": [1, 2]}


def look_up(x: int, table: list[int]) -> int:
    return table[x]


def main() -> None:
    set_parallel({"env": "local", "n_workers": 2})
    runner = Times(Models({"factor": 3}), output_dir=Path("out"), on_error="record", batch_size=2)
    results = runner(range(5))
    failures = [one for one in results if isinstance(one, ItemFailure)]
    print(failures, runner.summary)
    run = DetachedRun.open("out")
    print(run.status().done)
    with get_client(setup_fn=load) as client:
        print(client.gather(client.map(look_up, [0, 1])))
    print(parallel_map(look_up, [0, 1], setup_fn=load))
    for each in parallel_for(look_up, [0, 1], setup_fn=load, ordered=True):
        print(each)
    print(parallel_submit(look_up, 1, setup_fn=load).result())
    try:
        espnet3.parallel.run(look_up, [1, 2], env={"table": [1]})
    except ItemError as error:
        print(error.failure.index)


if __name__ == "__main__":
    main()
