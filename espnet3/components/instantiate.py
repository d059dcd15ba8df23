"""Objects from blocks of a config, by their `_target_`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from espnet3.parallel.backends.loading import pip_line
from espnet3.parallel.errors import ConfigError, MissingPackageError


def require(package: str, extra: str, purpose: str) -> Any:
    """Import a package of an extra; without it, the error has the `pip install` line."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {package} ({error}); install it with: {pip_line(extra)}",
            name=package,
        ) from error


def instantiate_block(config: Any, name: str, **kwargs: Any) -> Any:
    """Instantiate the block `name` of a config by its `_target_`, with further arguments."""
    # Imported here: hydra takes 0.1 s, and jobs that never instantiate should not pay for it.
    from hydra.utils import instantiate

    block = config.get(name)
    if not isinstance(block, Mapping) and not hasattr(block, "get"):
        raise ValueError(
            f"the config has no block {name!r} (it has {', '.join(map(str, config)) or 'nothing'})"
        )
    if not block.get("_target_"):
        raise ValueError(
            f"the block {name!r} has no _target_, the import path of the class to make: {block!r}"
        )
    return instantiate(block, **kwargs)


@cache
def load_function(path: str, key: str = "output_fn_path") -> Callable[..., Any]:
    """Import a function by its dotted path, which stands under a key of a config."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ValueError(f"{key} {path!r} must be a dotted path such as 'src.output_fn.output_fn'")
    module = import_module(module_name)
    function = getattr(module, name, None)
    if function is None:
        raise AttributeError(f"{key} {path!r}: {module.__file__} has no {name!r}")
    if not callable(function):
        raise TypeError(f"{key} {path!r} is a {type(function).__name__}, not a function")
    loaded: Callable[..., Any] = function
    return loaded


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
