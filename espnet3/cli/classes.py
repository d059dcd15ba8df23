"""A runner and a provider by their names, given on the command line or in a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from espnet3.cli.importable import look
from espnet3.parallel.errors import ConfigError


def runner_and_provider(whole: Any, runner: str | None, provider: str | None) -> tuple[Any, Any]:
    """Import both, and make the provider."""
    found = {
        what: name or _target(whole, what) for what, name in (("runner", runner), ("provider", provider))
    }
    if missing := [f"--{what} MODULE:CLASS" for what, name in found.items() if name is None]:
        raise ConfigError(f"which classes are meant? Give {' and '.join(missing)}")
    names = {what: str(name) for what, name in found.items()}
    if (
        os.getcwd() not in sys.path
    ):  # it begins with this command's folder; a user's script would have its own
        sys.path.insert(0, os.getcwd())
    if wrong := look(names).wrong:
        raise ConfigError("; ".join(wrong))
    runner_class, provider_class = (_class(names[what]) for what in ("runner", "provider"))
    try:
        return runner_class, provider_class() if whole is None else provider_class(whole)
    except Exception as error:  # the user's code
        raise ConfigError(
            f"{names['provider']} cannot be made{'' if whole is None else ' with the configuration'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _target(whole: Any, what: str) -> str | None:
    """Return "module:Class" of a block's `_target_`, if it has one."""
    block = whole.get(what) if isinstance(whole, Mapping) else None
    target = block.get("_target_") if isinstance(block, Mapping) else None
    return ":".join(str(target).rsplit(".", 1)) if target else None


def _class(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
