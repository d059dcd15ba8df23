"""A provider that was changed after it was made gives one answer in process, on workers and in detached jobs."""

import threading

import pytest

from espnet3.parallel import ChangedRunError, EnvironmentProvider
from espnet3.parallel.detached.job_spec import make_provider, provider_arguments
from tests.parallel.contract import work


class Scaled(EnvironmentProvider):
    """Takes a number out of its options, and keeps the options and words of its own."""

    def __init__(self, options):
        super().__init__()
        self.options = options
        self.scale = options["scale"]
        self.words = []

    def build_env_local(self):
        return {"factor": 100 * self.scale + 10 * self.options["scale"] + len(self.words)}


class Keeps(Scaled):
    """As it builds its env it keeps what cannot be pickled, and edits a list of its own."""

    def build_env_local(self):
        self.model = threading.Lock()
        self.words[:] = ["ab"]
        return super().build_env_local()


def set_scale():
    provider = Scaled({"scale": 1})
    provider.scale = 5
    return provider, 510


def edited():
    """The owner of an argument edits it: what was taken out of it before stays as it was."""
    options = {"scale": 1}
    provider = Scaled(options)
    options["scale"] = 4
    return provider, 140


def edited_of_its_own():
    """A list that it made itself is edited."""
    provider = Scaled({"scale": 1})
    provider.words.append("abc")
    return provider, 111


@pytest.mark.parametrize("change", [set_scale, edited, edited_of_its_own])
def test_a_change_counts_everywhere(place, change):
    """In process and on workers a run sees the provider as it is when the run starts."""
    provider, factor = change()
    assert work.Times(provider, progress=False)([1, 2]) == [factor, 2 * factor]


@pytest.mark.parametrize("change", [set_scale, edited])
def test_a_change_reaches_detached_jobs(change):
    """What a job's spec says of a provider makes one with the same env."""
    provider, factor = change()
    again = make_provider(type(provider), provider_arguments(provider))
    assert again.build_env_local() == provider.build_env_local() == {"factor": factor}


def test_what_building_the_env_sets_and_edits_is_no_change(place, tmp_path):
    """A provider that has kept a lock and edited itself serves workers, and goes on with its folder."""
    for _ in range(2):
        provider = Keeps({"scale": 1})
        assert provider.build_env_local() == {"factor": 111}
        for _ in range(2):
            assert work.Times(provider, output_dir=tmp_path / "run", progress=False)([1]) == [111]


@pytest.mark.parametrize(
    ("change", "named"),
    [(lambda it: setattr(it, "scale", 6), "scale"), (lambda it: it.words.append("b"), "words")],
    ids=["set", "edited"],
)
def test_a_folder_knows_a_changed_provider(change, named, tmp_path):
    """Results are not taken for those of a provider that was changed since; one that was changed alike resumes."""
    for _ in range(2):
        provider = edited_of_its_own()[0]
        assert work.Times(provider, output_dir=tmp_path / "run", progress=False)([1]) == [111]
    change(provider)
    with pytest.raises(ChangedRunError, match=named):
        work.Times(provider, output_dir=tmp_path / "run", progress=False)([1])
