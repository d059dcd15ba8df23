"""What a user gives, checked and worded in one place."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espnet3.parallel import BaseRunner, ConfigError, DetachedRun, EnvironmentProvider
from espnet3.parallel.checks import (
    FLAG,
    Choice,
    Location,
    Number,
    Sort,
    Whole,
    argument,
    as_python,
    names_of,
    problem,
)
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.layout import Layout, Plan

ROOT = Path(__file__).resolve().parents[2]


class Nothing(EnvironmentProvider):
    """Builds an empty env."""

    def build_env_local(self) -> dict[str, Any]:
        """Return no entries."""
        return {}


class Double(BaseRunner):
    """Doubles an index."""

    @staticmethod
    def forward(idx: int) -> int:
        """Return twice the index."""
        return 2 * idx


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (Whole(), [0, -3, np.int64(2), np.uint8(2)], [2.0, "2", True, None, math.nan], "an integer"),
        (Whole(least=0), [0, 7], [-1, np.int8(-1)], "an integer, 0 or more"),
        (Whole(least=1, example="4"), [1, np.int32(1)], [0, False], "a positive integer, such as 4"),
        (Whole(least=5, none="null"), [5, None], [4], "an integer, 5 or more, or null"),
        (Whole(least=1, called="a positive number of items"), [1], [0], "a positive number of items"),
        (Number(), [0, -1.5, np.float32(2), Fraction(1, 2)], [math.inf, math.nan, True, "1", 1j], "a number"),
        (Number(above=1, example="1.5"), [1.001], [1, np.float64(1)], "a number above 1, such as 1.5"),
        (Number(least=0, none="None"), [0, None], [-0.1, np.nan], "a number, 0 or more, or None"),
        (Choice(("on", "off")), ["on"], ["On", None, ["on"], np.array(["on", "off"])], "on or off"),
        (Choice((True, False, "force"), quoted=True), [True, "force"], ["yes"], 'True, False or "force"'),
        (FLAG, [True, False], [0, 1, "true", None], "true or false"),
        (
            names_of("variables", none="null"),
            [[], ["A"], None],
            ["A", [1], ("A",)],
            "a list of names of variables",
        ),
        (Location(), ["a", Path("a")], [None, b"a", 1], "a path"),
        (Location(none="None"), [None, ""], [1.0], "a path"),
    ],
)
def test_each_kind_takes_what_it_says(kind: Sort, good: list[Any], bad: list[Any], words: str) -> None:
    """A kind refuses what it is not, says what it must be, and takes all else."""
    assert [kind.refusal(value) for value in good] == [""] * len(good)
    for value in bad:
        assert kind.refusal(value).startswith(f"must be {words}"), value


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (np.int64(2), 2),
        (np.float32(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        (True, True),
        (Decimal(1), Decimal(1)),
    ],
)
def test_numbers_leave_as_pythons_own(value: Any, same: Any) -> None:
    """A number of another library becomes an int or a float; nothing else is changed."""
    assert as_python(value) == same
    assert type(as_python(value)) is type(same)


def test_an_argument_is_refused_with_its_name_and_value() -> None:
    """The error of an argument names it, says what it must be and what was given."""
    with pytest.raises(ConfigError, match=r"^batch_size must be a positive integer, or None, not 0$"):
        argument("batch_size", 0, Whole(least=1, none="None"))


def test_a_secret_is_not_shown() -> None:
    """A value under the name of a secret is masked in both forms."""
    assert "hunter2" not in problem("options.password", "hunter2", "must be a list")
    with pytest.raises(ConfigError) as caught:
        argument("api_key", "hunter2", Whole())
    assert "hunter2" not in str(caught.value)


def test_a_misspelt_choice_has_a_guess() -> None:
    """A text that is close to a choice is answered with that choice."""
    assert Choice(("raise", "record"), quoted=True).refusal("recrod") == (
        'must be "raise" or "record" (did you mean \'record\'?)'
    )
    with pytest.raises(ConfigError, match=r"^on_error must be .* \(did you mean 'record'\?\), not 'recrod'$"):
        argument("on_error", "recrod", Choice(("raise", "record"), quoted=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", np.int64(2)),
        ("seed", np.uint32(3)),
        ("max_failures", np.float32(0.5)),
    ],
)
def test_a_runner_takes_numpys_numbers(name: str, value: Any) -> None:
    """A runner given a number of numpy holds Python's own, which can be written as JSON."""
    runner = Double(Nothing({}), **{name: value})
    held = getattr(runner, name)
    assert held == value
    assert json.loads(json.dumps(held)) == held
    assert type(held) in (int, float)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_retries", -1, "an integer, 0 or more"),
        ("on_error", "skip", '"raise" or "record"'),
        ("resume", "yes", 'True, False or "force"'),
        ("max_failures", -1, "a whole number of items"),
        ("max_failures", 1.5, "a whole number of items, or a share of them below 1"),
        ("item_timeout", math.inf, "a number above 0"),
        ("item_timeout", 1e300, "1,000,000,000 at most, or None"),
        ("async_mode", "false", "true or false"),
        ("output_dir", 3, "a path"),
        ("async_result_dir", [], "a path"),
    ],
)
def test_a_runner_refuses_what_it_cannot_use(name: str, value: Any, words: str) -> None:
    """Each argument of a runner that is wrong is named, with what it must be and the value."""
    with pytest.raises(ConfigError) as caught:
        Double(Nothing({}), **{name: value})
    assert str(caught.value).startswith(f"{name} must be {words}")
    assert str(caught.value).endswith(f", not {value!r}")


def test_a_block_takes_numpys_numbers() -> None:
    """Every number of numpy in a `parallel` block, also in its options, becomes Python's own."""
    block = ParallelConfig.parse(
        {
            "env": "slurm",
            "n_workers": np.int64(3),
            "start_timeout": np.float32(5),
            "options": {"queue": "q", "cores": np.int64(2), "memory": "1GB"},
            "detached": {"shards": np.int64(4), "retry_memory_factor": np.float64(1.5)},
        }
    )
    numbers = [block.n_workers, block.start_timeout, block.options["cores"], *block.detached.values()]
    assert numbers == [3, 5.0, 2, 4, 1.5]
    assert {type(number) for number in numbers} == {int, float}


def test_a_grace_that_would_never_be_over_is_refused(tmp_path: Path) -> None:
    """A detached run is not cancelled with a grace that is no number of seconds, and nothing is ordered."""
    layout = Layout(tmp_path)
    layout.write_plan(Plan("hash", [0, 1], str(tmp_path / "specs"), ["split.0"], "local", 1, {}, {}), [0])
    with pytest.raises(ConfigError, match="^grace must be a number, 0 or more, not"):
        DetachedRun.open(tmp_path).cancel(math.nan)
    assert layout.stopped() is None
