"""What a function's parameters are given, and what is refused before any item has run."""

import functools

import pytest

from espnet3.parallel import (
    DictReturnWorkerPlugin,
    EnvConflictError,
    SignatureError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    wrap_func_with_worker_env,
)
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, lines

ENV = {"model": 10, "dataset": 20}


@pytest.fixture
def call(place):
    """Map a function over three items with an env."""

    def call(func, **kwargs):
        return parallel_map(func, range(3), setup_fn=lambda: dict(ENV), **kwargs)

    return call


pytestmark = pytest.mark.usefixtures("place")


def decorated(func):
    """Supply what the function asks for, as decorators do."""

    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, tokenizer=7, **kwargs)

    return wrapper


@decorated
def with_tokenizer(x, model, tokenizer):
    return x + model + tokenizer


def test_kinds_of_parameters(call):
    """Positional-only items, defaults, keyword-only parameters, *args and **env are given what they ask for."""
    assert call(lambda x, /, model: x + model) == [10, 11, 12]
    assert call(lambda x, y=1, *, model, dataset=0: (x, y, model, dataset)) == [
        (x, 1, 10, 20) for x in range(3)
    ]
    assert call(lambda *xs, model: (xs, model)) == [((x,), 10) for x in range(3)]
    assert call(lambda x, **env: (x, env)) == [(x, ENV) for x in range(3)]
    assert call(lambda x, y=5, **env: (y, env["model"]), y=6) == 3 * [(6, 10)]
    assert call(lambda x: x) == [0, 1, 2]


def test_objects_and_partials(call):
    """Methods, callable objects, classes and partials are given the env as functions are."""

    class Box:
        def __init__(self, x, model):
            self.sum = x + model

        @classmethod
        def made(cls, x, model):
            return cls(x, model).sum

        @staticmethod
        def static(x, dataset):
            return x + dataset

    assert [box.sum for box in call(Box)] == [10, 11, 12]
    assert call(Box.made) == [10, 11, 12]
    assert call(Box.static) == [20, 21, 22]
    assert call(functools.partial(lambda a, x, model: (a, x, model), "a")) == [("a", x, 10) for x in range(3)]
    assert call(functools.partial(lambda x, a, model: (a, x, model), a="a")) == [
        ("a", x, 10) for x in range(3)
    ]
    assert call(functools.lru_cache(lambda x, model: x + model)) == [10, 11, 12]


def test_a_decorator_may_supply_what_the_function_asks_for(call):
    """A wrapped function is given the env, and what its decorator supplies is not asked for."""
    assert call(with_tokenizer) == [17, 18, 19]


def test_a_function_wrapped_by_hand_is_the_function(call):
    """wrap_func_with_worker_env may be used where it is not needed."""
    assert call(wrap_func_with_worker_env(lambda x, model: x + model)) == [10, 11, 12]


@pytest.mark.parametrize(
    ("func", "kwargs", "words"),
    [
        (lambda folder: None, {}, "already bound by the item"),
        (lambda *, folder: None, {}, "takes none"),
        (lambda x, folder, a, /: None, {}, "by position only"),
        (lambda x, folder, vocoder: None, {}, "'vocoder'.*holds: 'model', 'dataset'"),
        (lambda x, folder: None, {"beam": 3}, "'beam', which is not a parameter"),
        (lambda x, folder, *args: None, {"args": 3}, "'args', which is not a parameter"),
        (functools.partial(lambda x, folder: None, x=1), {}, "takes none"),
    ],
    ids=[
        "item-name",
        "no-position",
        "positional-only",
        "missing",
        "unknown",
        "name-of-star",
        "partial-by-name",
    ],
)
def test_what_does_not_fit_is_refused(call, func, kwargs, words, tmp_path):
    """A signature that cannot be filled is a TypeError that says why, before any item has run."""
    with pytest.raises(SignatureError, match=words):
        call(func, folder=str(tmp_path), **kwargs)


def test_a_partials_keyword_that_the_env_also_holds_is_refused(call, tmp_path):
    """A keyword fixed by a partial is the caller's: it is not overridden by the env, but refused."""
    with pytest.raises(EnvConflictError, match="'model'"):
        call(functools.partial(work.noted_with, folder=str(tmp_path), model=3))
    assert lines(tmp_path) == []


def test_a_coroutine_function_is_refused(call):
    """A coroutine function is a TypeError that says what to do, and not a list of coroutines."""

    async def later(x):
        return x

    with pytest.raises(SignatureError, match=r"asyncio\.run"):
        call(later)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"y": 1}, "without arguments, not {'y': 1}"),
        (work.Provider({"factor": 1}), "make_worker_setup_fn"),
        (lambda config: {}, "'config'"),
    ],
    ids=["dict", "provider", "needs-arguments"],
)
@pytest.mark.parametrize("how", ["map", "for", "submit", "client", "plugin"])
def test_a_setup_that_cannot_be_called_is_refused(how, setup, words):
    """A setup_fn that is no function without arguments is a TypeError where it is given."""
    with pytest.raises(SignatureError, match=words):
        if how == "map":
            parallel_map(work.plus, [1], setup_fn=setup)
        elif how == "for":
            parallel_for(work.plus, [1], setup_fn=setup)
        elif how == "submit":
            parallel_submit(work.plus, 1, setup_fn=setup)
        elif how == "client":
            get_client(setup_fn=setup).__enter__()
        else:
            DictReturnWorkerPlugin(setup)


def test_a_client_that_is_none_is_refused():
    """A third argument that is no client is a TypeError that says where arguments of the function go."""
    for call in (parallel_map, parallel_for):
        with pytest.raises(TypeError, match="must be a Dask client, not 5"):
            call(work.plus, range(3), 5)
    with pytest.raises(TypeError, match="must be a Dask client"):
        parallel_submit(work.plus, 1, client="c")


def test_a_submitted_call_is_checked_too():
    """The error of a submitted call that lacks a parameter says what the env holds."""
    with pytest.raises(SignatureError, match="'tokenizer'.*holds: 'model'"):
        parallel_submit(lambda x, tokenizer: x, 1, setup_fn=lambda: {"model": 1}).result()


def test_a_plain_client_call_is_checked_too():
    """The error of client.submit for a call that lacks a parameter says what the env holds."""
    with get_client(TWO, setup_fn=lambda: dict(ENV)) as client:
        future = client.submit(lambda x, tokenizer: x, 1)
        with pytest.raises(SignatureError, match="'tokenizer'.*holds: 'model', 'dataset'"):
            future.result()
