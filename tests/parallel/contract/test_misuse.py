"""Slips of a newcomer: each is one error or one warning that says what to do, and none goes unnoticed."""

import re

import pandas
import pytest
from click.testing import CliRunner

from espnet3.parallel import (
    BaseRunner,
    ConfigError,
    EnvironmentProvider,
    EnvTypeError,
    InferenceProvider,
    SignatureError,
    get_client,
    get_parallel_config,
    parallel_map,
    run,
    set_parallel,
)
from espnet3_parallel.main import main
from tests.parallel.contract import work

PROVIDER = work.Provider({"factor": 2})


class Forgets(BaseRunner):
    @staticmethod
    def forward(idx):
        idx * 2


class Sometimes(BaseRunner):
    """Has results for some items, and none for others."""

    @staticmethod
    def forward(idx):
        return idx if idx == 3 else None


class OnlyBatches(BaseRunner):
    @staticmethod
    def batch_forward(indices, factor):
        return [(len(indices), idx * factor) for idx in indices]


class WritesNothing(Forgets):
    """Returns nothing on purpose: it writes."""

    @staticmethod
    def write_record(writers, result, state):
        pass


# --- results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True], ids=["in-memory", "in-a-folder"])
@pytest.mark.parametrize(("n", "words"), [(2, "all 2 items"), (500, "the first .* of 500")])
def test_a_forgotten_return_is_one_warning(place, n, words, stored, tmp_path):
    """Where every result is None a warning asks for the return, once, at the caller's line."""
    runner = Forgets(work.Whole(), progress=False, output_dir=tmp_path / "run" if stored else None)
    with pytest.warns(UserWarning, match=f"Forgets returned None for {words}.*`return`") as recorded:
        assert list(runner(range(n))) == [None] * n
    assert len(recorded) == 1
    assert recorded[0].filename == __file__


def test_results_that_may_be_none_are_no_slip(place, tmp_path):
    """Nothing is said of one item, of some results that are None, of writer hooks and of none at all."""
    assert Sometimes(work.Whole(), progress=False)(range(5)) == [None, None, None, 3, None]
    assert Forgets(work.Whole(), progress=False)([1]) == [None]
    assert Forgets(work.Whole(), progress=False)([]) == []
    assert list(WritesNothing(work.Whole(), progress=False, output_dir=tmp_path)(range(3))) == [None] * 3


# --- indices ----------------------------------------------------------------------------------------


def tables():
    """Return a table, a column of it and what is said of them."""
    table = pandas.DataFrame({"a": [1, 2]})
    return [(table, r"DataFrame: range\(len"), (table.a, r"Series: range\(len.* list\(series\)")]


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ("abc", r"str: \['abc'\] is a list of one; list\(\.\.\.\)"),
        (b"abc", r"bytes: .*list\(\.\.\.\)"),
        ({"utt1": "path"}, r"dict: list\(\.\.\.\) gives its keys, .*\.items\(\)"),
        (7, "must be an iterable of items, not 7"),
        (None, "must be an iterable of items, not None"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_hardly_meant_as_indices_is_refused(indices, words):
    """A text, a mapping or a number as indices is a TypeError that says what to give."""
    with pytest.raises(TypeError, match=words):
        work.Echo(work.Whole(), progress=False)(indices)


def test_tables_as_indices_are_refused_and_their_index_is_taken():
    """A DataFrame's columns would be run: a TypeError says what to give; its index is taken."""
    for indices, words in tables():
        with pytest.raises(TypeError, match=words):
            work.Echo(work.Whole(), progress=False)(indices)
        assert work.Echo(work.Whole(), progress=False)(indices.index) == [0, 1]


@pytest.mark.parametrize("provider", [None, {"factor": 2}], ids=["None", "mapping"])
def test_a_provider_that_builds_nothing_is_an_error_of_the_call(provider):
    """A runner may be made with anything, as in ESPnet3's own tests; one that cannot build an env is refused then."""
    runner = work.Times(provider, progress=False)
    with pytest.raises(
        ConfigError, match=r"the provider must have a method build_env_local, and .* has none"
    ):
        runner(range(3))


# --- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options", "said"),
    [
        (work.Times, {"batch_size": 4}, "batch_size=4 has no effect.*define batch_forward"),
        (work.TimesInBatches, {}, "TimesInBatches.batch_forward .* not called.*give a batch_size"),
    ],
)
def test_batches_that_nothing_asks_for_or_serves_are_a_warning(cls, options, said):
    """A batch size that nothing uses, and a batch_forward without one, are said once, when the runner is made."""
    with pytest.warns(UserWarning, match=said) as recorded:
        runner = cls(PROVIDER, progress=False, **options)
    assert runner(range(3)) == [0, 2, 4]
    assert len(recorded) == 1


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("later", [False, True], ids=["given", "set-later"])
def test_a_batch_size_below_one_is_an_error_of_the_call(size, later, recwarn):
    """As in ESPnet3, a runner is made with any whole batch size, and one below 1 is refused before an item runs."""
    runner = work.TimesInBatches(PROVIDER, batch_size=2 if later else size, progress=False)
    runner.batch_size = size
    with pytest.raises(ConfigError, match=f"batch_size must be a positive integer, or None, not {size}"):
        runner(range(3))
    assert not recwarn.list


@pytest.mark.parametrize("stored", [False, True], ids=["in-memory", "in-a-folder"])
def test_batch_forward_may_stand_alone(place, stored, tmp_path):
    """A runner with batch_forward alone runs: in batches of the size given, of one where none is given."""
    folder = tmp_path / "run" if stored else None
    runner = OnlyBatches(PROVIDER, batch_size=2, progress=False, output_dir=folder)
    assert list(runner(range(5))) == [(2, 0), (2, 2), (2, 4), (2, 6), (1, 8)]
    with pytest.warns(UserWarning, match="one index at a time; give a batch_size"):
        runner = OnlyBatches(PROVIDER, progress=False)
    assert runner(range(3)) == [(1, 0), (1, 2), (1, 4)]
    assert list(OnlyBatches(PROVIDER, batch_size=3, progress=False, output_dir=folder)(range(5)))[-1][1] == 8


@pytest.mark.parametrize(
    ("option", "fix"), [({"max_failures": 2}, 'on_error="record"'), ({"retry_failed": True}, "output_dir")]
)
def test_an_option_without_the_one_that_it_needs_is_warned_of(option, fix):
    """A limit of failures in a run that ends with the first one, and a retry without a folder, have no effect."""
    with pytest.warns(UserWarning, match=f"{next(iter(option))} has no effect: .*{fix}"):
        assert run(abs, [-1], progress=False, **option) == [1]


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "right"), [("ouput_dir", "output_dir"), ("onerror", "on_error")])
def test_a_misspelled_argument_is_named_with_the_right_one(wrong, right):
    """A typo in the constructor is a TypeError with the name that was meant."""
    with pytest.raises(TypeError, match=f"Echo.* no argument '{wrong}'. Did you mean '{right}'"):
        work.Echo(work.Whole(), **{wrong: 1})


def test_a_key_of_the_block_given_to_a_runner_is_sent_to_set_parallel():
    """A key of the parallel block, also misspelt, is answered with the call that registers it."""
    for name, guess in (("n_worker", " Did you mean 'n_workers'?"), ("env", "")):
        with pytest.raises(TypeError, match=rf"no argument '{name}'\.{re.escape(guess)}.* set_parallel\(\{{"):
            work.Echo(work.Whole(), **{name: 3})


@pytest.mark.parametrize("option", ["n_workers", "output_dir", "parallel"])
def test_an_option_of_run_is_sent_there(option):
    """An option given to a function that has no such parameter is answered with run, which takes it."""
    with pytest.raises(SignatureError, match=rf"run\(func, items, {option}=...\) takes it, and set_parallel"):
        parallel_map(abs, [1, 2], **{option: 2})


def test_the_keys_of_a_block_are_given_as_a_mapping():
    """Keys as keywords are answered with the call that is meant, and register nothing."""
    with pytest.raises(TypeError, match=r"one mapping: set_parallel\(\{'env': 'local', 'n_workers': 2\}\)"):
        set_parallel(env="local", n_workers=2)
    assert get_parallel_config() is None


def test_a_setup_fn_that_needs_arguments_is_told_how_it_gets_them():
    """A setup function with a parameter is answered with a partial of it."""
    with pytest.raises(
        SignatureError, match=r"'path'; give it what it needs by functools\.partial\(.*load, \.\.\.\)"
    ):
        parallel_map(abs, range(3), setup_fn=load)


def load(path):
    return {"factor": path}


@pytest.mark.parametrize(
    ("base", "own", "missing"),
    [
        (BaseRunner, "foward", "forward"),
        (EnvironmentProvider, "build_local_env", "build_env_local"),
        (InferenceProvider, "build_dataset", "build_model"),
    ],
)
def test_a_method_that_is_missing_is_named(base, own, missing):
    """What a class lacks, forgotten or misspelt, is named when the first object is made."""
    with pytest.raises(TypeError, match=rf"Half .*\b{missing}\b"):
        type("Half", (base,), {own: staticmethod(lambda *given: {})})({})


class NoReturn(EnvironmentProvider):
    def build_env_local(self):
        _ = {"factor": 2}


def returns_a_list():
    return [1, 2]


def test_an_env_that_is_none_names_the_provider_and_the_return(place):
    """What a provider forgot to return is said by the provider's name, in process and on workers."""
    with pytest.raises(
        EnvTypeError, match=r"NoReturn\.build_env_local must return a dict .*None: is a `return` missing\?"
    ):
        work.Echo(NoReturn(), progress=False)(range(3))


def test_an_env_that_is_a_list_names_the_setup_fn(place):
    """A setup function that returns something else is named, and its value is shown."""
    with pytest.raises(
        EnvTypeError, match=r"returns_a_list as setup_fn must return a dict .*list: \[1, 2\]$"
    ):
        parallel_map(abs, range(3), setup_fn=returns_a_list)


@pytest.mark.parametrize("name", ["forward", "write_record", "close_writers"])
def test_a_function_with_yield_is_refused_where_nobody_would_run_it(name):
    """A generator function in place of one that returns is found when the class is defined."""

    def generates(*args):
        yield args

    with pytest.raises(
        SignatureError, match=f"Generates.{name} must be a plain function: .*`yield`.*Return a list"
    ):
        type("Generates", (work.Echo,), {name: staticmethod(generates)})


def test_a_batch_may_be_generated():
    """batch_forward may yield its results: they are iterated over anyway."""

    class Generates(work.Echo):
        @staticmethod
        def batch_forward(indices):
            yield from (2 * idx for idx in indices)

    assert Generates(work.Whole(), batch_size=2, progress=False)(range(3)) == [0, 2, 4]


def test_a_client_is_there_within_its_block_alone():
    """Whoever takes what `get_client` returns for a client, as Dask's own is made, is shown the block."""
    with pytest.raises(AttributeError, match=r"with get_client\(\.\.\.\) as client: client\.map"):
        get_client({"env": "local", "n_workers": 2}).map(abs, [-1])


@pytest.mark.parametrize(("wrong", "right"), [("stauts", "status"), ("merg", "merge")])
def test_a_misspelled_verb_is_named_with_the_right_one(wrong, right):
    """The command says which verb was meant, and all that there are."""
    result = CliRunner().invoke(main, [wrong, "run"])
    assert result.exit_code == 2
    assert f"no such command '{wrong}'. Did you mean '{right}'?" in result.output


# --- what would be found late, or in words of another package -----------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("merge", r"is called as merge\(shard_dirs\) .*: define it as merge\(self, shard_dirs\)"),
        ("write_outputs", r"called as write_outputs\(indices, results\)"),
    ],
)
def test_a_method_for_the_end_is_checked_at_the_beginning(name, words, tmp_path):
    """merge or write_outputs that cannot take what it will be given is an error before the first item."""
    ran = []

    class Ends(BaseRunner):
        @staticmethod
        def forward(idx):
            ran.append(idx)

    setattr(Ends, name, lambda self: None)
    with pytest.raises(SignatureError, match=words):
        Ends(work.Whole(), output_dir=tmp_path / "run", progress=False)(range(3))
    assert ran == []


def test_a_hook_that_takes_too_little_is_told_what_it_is_given(tmp_path):
    """The error of a writer hook says how much it gets by position, and does not speak of items."""

    class Writes(BaseRunner):
        @staticmethod
        def forward(idx):
            return idx

        @staticmethod
        def write_record(writers, result):
            pass

    with pytest.raises(SignatureError, match="called with 3 arguments by position, and takes 2"):
        Writes(work.Whole(), output_dir=tmp_path / "run", progress=False)(range(3))


@pytest.mark.parametrize("option", [{"protocol": "foo"}, {"interface": "eth99"}])
def test_what_dask_says_of_an_option_is_an_error_of_the_block(option):
    """A value that only the class of a cluster refuses comes as a ConfigError with its words."""
    (value,), block = option.values(), {"env": "local", "n_workers": 2, "options": option}
    with pytest.raises(ConfigError, match=f"(?s)options of local: .*{value}"), get_client(block):
        pass
