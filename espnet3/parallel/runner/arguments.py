"""What a runner is given: checked before anything is done with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from espnet3.parallel.checks import RESUME, Choice, Kind, Location, Number, Whole, argument
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown

_KINDS: dict[str, Kind] = {
    "async_num_workers": Whole(least=1, none="None"),
    "async_result_dir": Location(),
    "async_specs_dir": Location(),
    "batch_size": Whole(least=1, none="None"),
    "item_timeout": Number(above=0, none="None"),
    "max_failures": Number(least=0, none="None"),
    "max_retries": Whole(least=0),
    "on_error": Choice(("raise", "record"), quoted=True),
    "output_dir": Location(none="None"),
    "resume": RESUME,
    "seed": Whole(none="None"),
    "shard_subdir": Location(),
    "setup_timeout": Number(above=0, none="None"),
}


def checked(name: str, value: Any) -> Any:
    """Return an argument of `BaseRunner` as a plain Python value; a path as a `Path`.

    Raises:
        ConfigError: It is not what it must be; the message says what that is, and the value.
    """
    kind = _KINDS[name]
    found = argument(name, value, kind)
    return Path(found) if isinstance(kind, Location) and found is not None else found


def check_provider(provider: Any) -> None:
    """Raise `ConfigError` where it is a class, or has no way to build an env."""
    if isinstance(provider, type):
        raise ConfigError(
            f"the provider must be an object, and {provider.__qualname__} is the class: make one, "
            f"{provider.__qualname__}(config)"
        )
    if not callable(getattr(provider, "build_env_local", None)):
        raise ConfigError(f"the provider must have a method build_env_local, and {shown(provider)} has none")
