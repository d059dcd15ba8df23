"""`python -m benchmarks.submission`, as far as it goes without a scheduler."""

import pytest

from benchmarks import submission


def test_without_slurm_it_says_what_to_do(monkeypatch):
    """Where there is no sbatch, that is said before anything is measured."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="sbatch is not on the PATH: run this where SLURM is, or with --lab"):
        submission.main(["--shards", "2"])


def test_calls_and_times_of_an_action_are_counted(monkeypatch, tmp_path):
    """Each call of a command is counted for the action that made it, and reaches the command."""
    real, scripts = tmp_path / "real", tmp_path / "scripts"
    for folder in (real, scripts):
        folder.mkdir()
    for command in submission.COMMANDS:
        (real / command).write_text(f'#!/bin/sh\necho {command} "$@"\n')
        (real / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{real}:/usr/bin:/bin")
    commands = submission.Counted(scripts)
    taken = submission.Taken()

    def act():
        ask = ["squeue", "-h"]
        return [submission.subprocess.check_output(ask, text=True) for _ in range(2)]

    assert commands.during(act, taken) == ["squeue -h\n"] * 2
    commands.during(lambda: None, taken)
    assert taken.calls == [{"squeue": 2}, {}]
    assert len(taken.wall_s) == len(taken.cpu_s) == 2
    assert taken.wall_s[0] > taken.wall_s[1]
