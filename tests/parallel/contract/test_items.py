"""What may be given as items, and what happens to a run whose items are changed or listed in an odd way."""

from collections import UserList, deque

import pytest

from espnet3.parallel import BaseRunner, parallel_for, parallel_map
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")
MANY = 2000


class Rows:
    """A dataset as torch has them: a length and items by number, and no iterator."""

    def __len__(self):
        return 5

    def __getitem__(self, at):
        if at >= 5:
            raise IndexError(at)
        return 10 * at


class Backwards(list):
    """A list that is iterated over from its end."""

    def __iter__(self):
        return reversed(self)


class Emptying(BaseRunner):
    """Its cost hint is asked once per item, in the driver; the first call empties the caller's list."""

    caller: list

    @staticmethod
    def forward(idx):
        return idx

    def item_cost(self, idx):
        self.caller.clear()
        return 1.0


def test_a_list_that_is_emptied_during_a_run_changes_nothing():
    """The indices of a run are those it was called with, whatever is done to the list meanwhile."""
    indices = list(range(MANY))
    runner = Emptying(work.Whole(), progress=False)
    runner.caller = indices
    assert runner(indices) == list(range(MANY))


@pytest.mark.parametrize("kind", [list, UserList, deque], ids=lambda kind: kind.__name__)
def test_a_stream_whose_consumer_shortens_the_list_ends_with_all_items(kind):
    """A consumer may take items out of the list that it gave: the stream neither hangs nor skips any."""
    items = kind(range(MANY))
    seen = []
    for value in parallel_for(work.plus, items):
        seen.append(value)
        if items:
            items.pop()
    assert sorted(seen) == [i + 1 for i in range(MANY)]


def test_a_list_with_an_order_of_its_own_is_iterated_over():
    """A subclass of list counts by what its iterator gives, as in a for loop."""
    rows = Backwards([1, 2, 3])
    assert parallel_map(str, rows) == ["3", "2", "1"]
    assert list(parallel_for(str, rows, ordered=True)) == ["3", "2", "1"]
    runner = Emptying(work.Whole(), progress=False)
    runner.caller = []
    assert runner(rows) == [3, 2, 1]


def test_a_dataset_with_items_by_number_alone_is_streamed_and_mapped():
    """Datasets with __getitem__ and __len__ are taken by parallel_for as by parallel_map and runners."""
    wanted = ["0", "10", "20", "30", "40"]
    assert parallel_map(str, Rows()) == wanted
    assert list(parallel_for(str, Rows(), ordered=True)) == wanted


def test_what_is_no_iterable_is_refused_by_name():
    """Something that cannot be iterated over is a TypeError that names the argument."""
    with pytest.raises(TypeError, match="args must be an iterable of items, not 7"):
        parallel_for(str, 7)
    with pytest.raises(TypeError, match="data must be an iterable of items, not 7"):
        parallel_map(str, 7)


def test_an_item_that_lets_a_stop_iteration_out_is_called_once(tmp_path):
    """An item's StopIteration is its failure at the first call: what the item does is not done twice."""
    with pytest.raises(StopIteration) as caught:
        parallel_map(work.noted_and_stopped, range(5), folder=str(tmp_path))
    (failed,) = caught.value.args  # the first one that came in, of several workers
    assert (tmp_path / "log").read_text().splitlines().count(str(failed)) == 1
