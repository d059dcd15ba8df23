"""A provider that was changed after it was made gives one answer in process, on workers and in detached jobs."""

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass

import pytest

from espnet3.parallel import ChangedRunError, EnvironmentProvider
from espnet3.parallel.detached.job_spec import make_provider, provider_arguments
from tests.parallel.contract import work


class Scaled(EnvironmentProvider):
    """Takes a number out of its options, and keeps the options."""

    def __init__(self, options, offset=0):
        super().__init__()
        self.options = options
        self.scale = options["scale"]
        self.offset = offset

    def rescale(self, scale):
        self.scale = scale

    def build_env_local(self):
        return {"factor": 100 * self.scale + 10 * self.options["scale"] + self.offset}


@dataclass
class Options:
    scale: int = 1


class Collected(EnvironmentProvider):
    """Keeps words, options and a scorer of its own, which it makes itself."""

    def __init__(self, options=None):
        super().__init__()
        self.words = []
        self.options = Options() if options is None else options
        self.first = vars(self.options)["scale"]
        self.length = len

    def add(self, word):
        self.words.append(word)

    def use(self, length):
        self.length = length

    def build_env_local(self):
        return {
            "factor": 100 * sum(map(self.length, self.words)) + 10 * vars(self.options)["scale"] + self.first
        }


class Caching(Collected):
    """Edits a list of its own as it builds the env."""

    def build_env_local(self):
        self.words[:] = ["ab"]
        return super().build_env_local()


class Doubled:
    """Measures a word twice; no plain data."""

    def __call__(self, word):
        return 2 * len(word)


class Keeps(Scaled):
    """Keeps what cannot be pickled on itself, from a function within a method."""

    def build_env_local(self):
        def load():
            self.model = threading.Lock()

        load()
        return super().build_env_local()


def set_scale():
    """An attribute is set."""
    provider = Scaled({"scale": 1})
    provider.scale = 5
    return provider, 510


def set_by_a_method():
    """A method of its own sets an attribute, after it was made."""
    provider = Scaled({"scale": 1})
    provider.rescale(6)
    return provider, 610


def edited():
    """The owner of an argument edits it: what was taken out of it before stays as it was."""
    options = {"scale": 1}
    provider = Scaled(options)
    options["scale"] = 4
    return provider, 140


def edited_below():
    """The same, a level below, in a list of another argument."""
    options = {"scale": 1, "more": [{"scale": 7}]}
    provider = Scaled(options)
    provider.scale = options["more"][0]["scale"]
    options["more"].clear()
    return provider, 710


def edited_of_its_own():
    """A list that it made itself is edited by a method, and a record from outside."""
    provider = Collected()
    provider.add("abc")
    provider.options.scale = 2
    return provider, 321


def given_an_object():
    """A method keeps an object that it was given."""
    provider = Collected()
    provider.add("abc")
    provider.use(Doubled())
    return provider, 611


def edited_dataclass():
    """The owner of a record edits it after it was given; what was taken out before stays."""
    options = Options(scale=1)
    provider = Collected(options)
    options.scale = 4
    return provider, 41


def edited_collections():
    """The argument holds a set, a deque and an ordered dict, which their owner empties."""
    options = OrderedDict(scale=1, names={"a", "b"}, queue=deque([7]))
    provider = Scaled(options, len(options["names"]) + options["queue"][0])
    options["scale"] = 4
    options["names"].clear()
    options["queue"].clear()
    return provider, 149


CHANGES = [set_scale, set_by_a_method, edited, edited_below]
LIVE = [edited_of_its_own, given_an_object, edited_dataclass, edited_collections]
# JSON, of which the spec of a detached job is, holds no objects


@pytest.mark.parametrize("change", CHANGES + LIVE)
def test_a_change_counts_everywhere(place, change):
    """In process and on workers a run sees the provider as it is when the run starts."""
    provider, factor = change()
    assert work.Times(provider, progress=False)([1, 2]) == [factor, 2 * factor]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reaches_detached_jobs(change):
    """What a job's spec says of a provider makes one with the same env."""
    provider, factor = change()
    again = make_provider(type(provider), provider_arguments(provider))
    assert again.build_env_local() == provider.build_env_local() == {"factor": factor}


def test_what_a_provider_sets_itself_does_not_travel(place):
    """A provider that has kept a lock on itself, as it built its env, serves workers: they build their own."""
    provider = Keeps({"scale": 1})
    assert provider.build_env_local() == {"factor": 110}
    assert work.Times(provider, progress=False)([1]) == [110]


def test_a_folder_knows_a_changed_provider(tmp_path):
    """The results of a provider are not taken for those of one whose attribute was set to something else."""
    provider, _ = set_scale()
    assert work.Times(provider, output_dir=tmp_path / "run", progress=False)([1]) == [510]
    provider.scale = 6
    with pytest.raises(ChangedRunError, match="scale"):
        work.Times(provider, output_dir=tmp_path / "run", progress=False)([1])


def test_a_folder_knows_an_edited_provider(tmp_path):
    """Nor for those of one that edited a list of its own since; a provider that was edited alike resumes."""
    for words, answer in ((["a"], [111]), (["a"], [111]), (["ab"], None)):
        provider = Collected()
        for word in words:
            provider.add(word)
        runner = work.Times(provider, output_dir=tmp_path / "run", progress=False)
        if answer is None:
            with pytest.raises(ChangedRunError, match="words"):
                runner([1])
        else:
            assert runner([1]) == answer


def test_what_building_the_env_edits_is_no_change(tmp_path):
    """A provider that edits itself as it builds its env goes on with its folder, in one program and in the next."""
    for _ in range(2):
        provider = Caching()
        for _ in range(2):
            assert work.Times(provider, output_dir=tmp_path / "run", progress=False)([1]) == [211]
