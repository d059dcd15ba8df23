"""How values, keys and guesses are written in messages: whatever the value is, and quickly."""

from __future__ import annotations

import pytest

from espnet3.parallel.engine.exceptions import item_error
from espnet3.parallel.messages import did_you_mean, masked, named, shown
from espnet3.parallel.records import ItemFailure


class Unshowable:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def nested() -> list[object]:
    """Return a list that contains itself."""
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "kind"),
    [(Unshowable(), "Unshowable"), ([Unshowable()], "list"), (10**5000, "int"), (nested(), "list")],
    ids=["its repr raises", "an item's repr raises", "too many digits", "it contains itself"],
)
def test_a_value_that_cannot_be_shown_is_named_by_its_type(value: object, kind: str) -> None:
    """A message about a value never fails because of the value."""
    assert shown(value).startswith(f"<a value of type {kind}, whose repr raises ")
    assert named(value) == shown(value)


def test_a_text_of_a_pages_length_is_shown_cut_and_guessed_at_by_nobody() -> None:
    """A file's text in the place of a name is cut, and no name is looked for that it may have been meant for."""
    text = "n_workers: 4\n" * 50_000
    assert len(shown(text)) == len(named(text)) == 80
    assert did_you_mean(text, ["n_workers"]) == ""
    assert did_you_mean("n_wrokers", ["n_workers"]) == " Did you mean 'n_workers'?"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("export WANDB_API_KEY=abc", "export WANDB_API_KEY=***"),
        ("--token=abc --tokenizer=bpe", "--token=*** --tokenizer=bpe"),
        ("my-password = abc rest", "my-password = *** rest"),
        ("--export=ALL,API_KEY=abc", "--export=ALL,API_KEY=***"),
        ("a token without a value", "a token without a value"),
        ("token" * 20_000, "token" * 20_000),
    ],
)
def test_a_secret_in_a_text_is_masked(text: str, safe: str) -> None:
    """What is assigned to a name that looks like a secret's is masked, in a text of any length; nothing else is."""
    assert masked(text) == safe


@pytest.mark.parametrize(
    "error", [LookupError("no text"), SystemExit(3)], ids=lambda error: type(error).__name__
)
def test_an_error_of_an_item_without_a_text_has_one(error: BaseException) -> None:
    """An index whose repr raises is named by its type in the failure, the error and its note."""

    class Mute:
        def __repr__(self) -> str:
            raise error

    said = f"item <a value of type Mute, whose repr raises {type(error).__name__}>"
    failure = ItemFailure(Mute(), "ValueError", "bad", "", 1, "")
    assert failure.name == said
    assert str(item_error(ValueError("bad"), failure)).startswith(f"{said} failed ")


def test_a_guess_needs_a_close_name() -> None:
    """A guess is given for a close name whatever its case, and for nothing else."""
    assert did_you_mean("QUEU", ["queue", "cores"]) == " Did you mean 'queue'?"
    assert did_you_mean("zzz", ["queue"]) == did_you_mean(3, ["queue"]) == ""


def test_secrets_are_masked_at_any_depth() -> None:
    """Values under secret names and assignments in shell text are masked, others (a tokenizer) are kept."""
    value = {"a": [{"api_key": "s"}, "export X_TOKEN=s; ls", 3], "passphrase": None, "tokenizer": "bpe"}
    assert masked(value) == {
        "a": [{"api_key": "***"}, "export X_TOKEN=*** ls", 3],
        "passphrase": None,
        "tokenizer": "bpe",
    }
    assert masked({"name": "MY_SECRET", "value": "s"}) == {"name": "MY_SECRET", "value": "***"}
    assert value["a"][0] == {"api_key": "s"}  # type: ignore[index]  # it is a list
