"""What help() and an editor say that a runner and a provider are made with."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider


class Plain(BaseRunner):
    """A runner without a constructor of its own."""

    @staticmethod
    def forward(idx: int) -> int:
        return idx


class Own(Plain):
    def __init__(self, provider: Any, extra: int = 3, **options: Any) -> None:
        super().__init__(provider, **options)
        self.extra = extra


class Nothing(EnvironmentProvider):
    """A provider without a constructor of its own."""

    def build_env_local(self) -> dict[str, Any]:
        return {}


@dataclass
class Fields(Nothing):
    path: str
    limit: int = 3


def names(what: Any) -> list[str]:
    """Return the parameters of a class."""
    return list(inspect.signature(what).parameters)


def test_a_class_shows_the_arguments_of_its_constructor() -> None:
    """Not *args and **kwargs, whoever has defined the constructor."""
    assert names(Plain)[:3] == ["provider", "batch_size", "output_dir"]
    assert "on_error" in names(Plain)
    assert names(Own) == ["provider", "extra", "options"]
    assert names(Nothing) == ["config"]
    assert names(Fields) == ["path", "limit"]
    assert "output_dir" in (inspect.getdoc(BaseRunner) or "")
