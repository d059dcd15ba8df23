"""The values that `forward` may return when results go to disk."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ItemError, ItemFailure, ValueTypeError, set_parallel
from tests.parallel.durable.work import Odd, Provider, Values
from tests.parallel.ledger.test_values import VALUES, same


@pytest.mark.parametrize("n_workers", [1, 2])
def test_values_come_back_from_disk_as_they_were(n_workers: int, tmp_path: Path) -> None:
    """nan, bytes, tuples, paths, numpy values, odd keys and non-ASCII text survive the trip, types kept."""
    runner = Values(Provider({"values": VALUES}), output_dir=tmp_path, progress=False)
    set_parallel({"env": "local", "n_workers": n_workers})
    results = runner(range(len(VALUES)))
    for one, other in zip(VALUES, results, strict=True):
        assert same(one, other), (one, other)


BAD = [
    (Odd(), r"item 2: result is of type tests\.parallel\.durable\.work\.Odd"),
    ({"a": [1, {5}]}, r"item 2: result\[\'a\'\]\[1\] is of type set"),
]


@pytest.mark.parametrize(("value", "said"), BAD)
def test_a_value_json_cannot_hold_is_named_at_the_first_item(value: Any, said: str, tmp_path: Path) -> None:
    """The error names index, place and type; the items before it are kept."""
    runner = Values(Provider({"values": [0, 1, value, 3]}), output_dir=tmp_path, progress=False)
    set_parallel({"env": "local", "n_workers": 2})
    with pytest.raises(ItemError, match=said) as caught:
        runner(range(4))
    assert isinstance(caught.value.__cause__, ValueTypeError)
    assert caught.value.index == 2


def test_such_a_value_is_recorded_as_its_items_failure(tmp_path: Path) -> None:
    """With `on_error="record"` the item fails with the cause "result", without a retry, and the run goes on."""
    values = [0, Odd(), 2, Odd()]
    runner = Values(
        Provider({"values": values}), output_dir=tmp_path, progress=False, on_error="record", max_retries=3
    )
    results = runner(range(4))
    assert (results[0], results[2]) == (0, 2)
    assert [(r.index, r.cause, r.attempts) for r in results if isinstance(r, ItemFailure)] == [
        (1, "result", 1),
        (3, "result", 1),
    ]


@pytest.mark.parametrize("detached", [False, True], ids=["driver", "detached"])
def test_an_index_json_cannot_hold_is_named_with_advice_for_indices(tmp_path: Path, detached: bool) -> None:
    """The list is checked before the folder is touched; the error has position and value, and says what to give."""
    runner = Values(
        Provider({"values": {}}), output_dir=tmp_path / "run", progress=False, async_mode=detached
    )
    with pytest.raises(ValueTypeError, match=r"^indices\[1\] = \{1, 2\} \(set\) .*: give numbers") as caught:
        runner([1, {1, 2}, *range(9)])
    assert "return" not in str(caught.value) and "writer hook" not in str(caught.value)
    assert not (tmp_path / "run").exists()
