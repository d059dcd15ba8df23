"""A system whose program runs in several processes: which of them runs which stages, and what is refused."""

from functools import partial
from typing import Any

import pytest

from espnet3.systems.base.system import BaseSystem

VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_STEP_ID")
VARIABLES += ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def srun(rank: int) -> dict[str, str]:
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    return {**step, "SLURM_PROCID": str(rank)}


def torchrun(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def lightning(rank: int) -> dict[str, str]:
    """Return the variables of a process that Lightning has started, or that has started one."""
    return {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": "2"} if rank else {}


BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}  # no step


class Noted(BaseSystem):
    """Notes its stages instead of running them."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.ran: list[str] = []
        for name in ("collect_stats", "train", "infer"):
            setattr(self, name, partial(self.ran.append, name))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives this process the variables of another one."""

    def become(variables: dict[str, str]) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return become


@pytest.mark.parametrize("launcher", [srun, torchrun, lightning])
def test_only_the_first_process_runs_what_follows_a_training(launcher: Any, processes: Any) -> None:
    """All train, and the first one infers."""
    for rank, ran in ((0, ["train", "infer"]), (1, ["train"])):
        processes(launcher(rank))
        system = Noted()
        system.run(["train", "infer"])
        assert system.ran == ran, rank


@pytest.mark.parametrize("launcher", [srun, torchrun])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_comes_before_a_training_is_refused_in_processes_that_start_together(
    launcher: Any, rank: int, processes: Any
) -> None:
    """Each says that it would begin before the first one is ready; without the training there is nothing to refuse."""
    processes(launcher(rank))
    said = f"{launcher.__name__} has started several processes of this, and only the first one runs collect_stats"
    system = Noted()
    with pytest.raises(ValueError, match=said):
        system.run(["collect_stats", "train"])
    assert system.ran == []
    system.run(["collect_stats"])
    assert system.ran == ([] if rank else ["collect_stats"])


@pytest.mark.parametrize(
    "variables", [lightning(0), lightning(1), BATCH_SCRIPT, srun(0) | {"SLURM_STEP_NUM_TASKS": "1"}]
)
def test_one_process_runs_all_stages(variables: dict[str, str], processes: Any) -> None:
    """Lightning starts further ones late enough, and a batch script is one process, however many tasks its job has."""
    processes(variables)
    system = Noted()
    system.run(["collect_stats", "train"])
    assert system.ran == (["train"] if variables.get("LOCAL_RANK") else ["collect_stats", "train"])
