"""A provider that was changed after it was made gives one answer in process, on workers and in detached jobs."""

import threading

import pytest

from espnet3.parallel import ChangedRunError, EnvironmentProvider
from espnet3.parallel.detached.spec import make_provider, provider_arguments
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


class Lazy(Scaled):
    """Builds its model when that is first asked for."""

    @property
    def model(self):
        if not hasattr(self, "_model"):
            self._model = threading.Lock()
        return self._model


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


def set_new():
    """One is set that was the default's."""
    provider = Scaled({"scale": 1})
    provider.offset = 3
    return provider, 113


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


CHANGES = [set_scale, set_new, set_by_a_method, edited, edited_below]


@pytest.mark.parametrize("change", CHANGES)
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


def test_an_object_that_was_built_lazily_does_not_travel(place):
    """What a provider's property has built for whoever asked stays here: workers build their own."""
    provider = Lazy({"scale": 1})
    assert provider.model is provider.model
    assert work.Times(provider, progress=False)([1]) == [110]


def test_a_folder_knows_a_changed_provider(tmp_path):
    """The results of a provider are not taken for those of one whose attribute was set to something else."""
    provider, _ = set_scale()
    assert work.Times(provider, output_dir=tmp_path / "run", progress=False)([1]) == [510]
    provider.scale = 6
    with pytest.raises(ChangedRunError, match="scale"):
        work.Times(provider, output_dir=tmp_path / "run", progress=False)([1])


def test_arguments_that_hold_themselves_are_no_trouble(place):
    """A provider may be made with a list that holds itself."""
    loop = [1]
    loop.append(loop)
    provider = Scaled({"scale": 1, "loop": loop})
    assert work.Times(provider, progress=False)([1]) == [110]
