"""Objects from blocks of a config, by their `_target_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from espnet3.parallel.backends.backend import pip_line
from espnet3.parallel.errors import ConfigError, MissingPackageError
from espnet3.parallel.messages import shown


def require(package: str, extra: str, purpose: str) -> Any:
    """Import a package of an extra; without it, the error has the `pip install` line."""
    try:
        return import_module(package)
    except ImportError as error:
        said = f"{purpose} needs the package {package} ({error}); install it with: {pip_line(extra)}"
        raise MissingPackageError(said, name=package) from error


def instantiate_block(config: Any, name: str, **kwargs: Any) -> Any:
    """Instantiate the block `name` of a config by its `_target_`, with further arguments."""
    # Imported here: hydra takes 0.1 s, and jobs that never instantiate should not pay for it.
    from hydra.utils import instantiate

    block = config.get(name)
    if not hasattr(block, "get"):
        there = ", ".join(map(str, config)) or "nothing"
        raise ValueError(f"the config has no block {name!r} (it has {there})")
    if not block.get("_target_"):
        raise ValueError(f"the block {name!r} has no _target_, the import path of what to make: {block!r}")
    return instantiate(block, **kwargs)


def locate(path: str, key: str = "_target_") -> Any:
    """Import what a dotted path under a key of a config names; where that cannot be done, a ConfigError says why."""
    try:
        return resolve_name(path)
    except Exception as error:  # whatever the import has raised
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        refused = ConfigError(f"{key} = {shown(path)}: cannot be imported ({said})")
        refused.problems = (str(refused),)
        raise refused from error


def texts_in(block: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a block, behind its key, such as `callbacks[0]._target_`."""
    if isinstance(block, Mapping):
        for name, value in block.items():
            yield from texts_in(value, f"{key}.{name}" if key else str(name))
    elif isinstance(block, (list, tuple)):
        for at, value in enumerate(block):
            yield from texts_in(value, f"{key}[{at}]")
    elif isinstance(block, str):
        yield key, block


def check_targets(block: Any) -> None:
    """Check that each `_target_` in a block can be imported; nothing is made."""
    for key, text in texts_in(block):
        if key.rpartition(".")[2] == "_target_" and "${" not in text:
            locate(text, key)


@cache
def load_function(path: str, key: str = "output_fn_path") -> Callable[..., Any]:
    """Import a function by its dotted path, which stands under a key of a config."""
    function = locate(path, key)
    if not callable(function):
        raise TypeError(f"{key} {path!r} is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]  # the user's


def as_plain(value: Any) -> Any:
    """Return a value with every OmegaConf config in it as plain dicts and lists, interpolations resolved."""
    import omegaconf  # here: what never sees a config need not load it

    if omegaconf.OmegaConf.is_config(value):
        try:
            return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except omegaconf.MissingMandatoryValue as error:
            raise ConfigError(f"{error.full_key} = ???: write its value into the config") from error
    if isinstance(value, Mapping):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(each) for each in value]
    return value


def as_dict(config: Any) -> dict[str, Any]:
    """Return a mapping or an OmegaConf config as a plain dict, interpolations resolved."""
    config = as_plain(config)
    if not isinstance(config, Mapping):
        raise TypeError(f"a config must be a mapping, not {type(config).__name__}: {config!r}")
    return {str(key): value for key, value in config.items()}
