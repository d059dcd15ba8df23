"""The common provider: a dataset and a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from espnet3.parallel.checks import Fits, argument
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.errors import ConfigError


class InferenceProvider(EnvironmentProvider):
    """Builds `{"dataset": ..., "model": ..., **params}` from a config.

    Args:
        config: Passed to `build_dataset` and `build_model` as it is.
        params: Further env entries by name (device, beam size, ...).
        inference_config: Another name of `config`.

    Raises:
        ConfigError: Both names were given, or `params` is no mapping.
    """

    def __init__(
        self, config: Any = None, params: Mapping[str, Any] | None = None, *, inference_config: Any = None
    ) -> None:
        if config is not None and inference_config is not None:
            raise ConfigError(
                "config and inference_config are two names of one argument: leave one of them out"
            )
        super().__init__(inference_config if config is None else config)
        fits = Fits(
            lambda value: isinstance(value, Mapping) and value.keys().isdisjoint(("dataset", "model")),
            "a mapping without dataset and model, which are built",
            none="None",
        )
        argument("params", params, fits)
        self.params: dict[str, Any] = dict(params or {})

    def build_env_local(self) -> dict[str, Any]:
        """Build dataset and model in this process, and add the params."""
        return {
            "dataset": self.build_dataset(self.config),
            "model": self.build_model(self.config),
            **self.params,
        }

    @staticmethod
    @abstractmethod
    def build_dataset(config: Any) -> Any:
        """Return the dataset, `forward`'s parameter `dataset`."""

    @staticmethod
    @abstractmethod
    def build_model(config: Any) -> Any:
        """Return the model, `forward`'s parameter `model`."""
