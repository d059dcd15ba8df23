"""The provider of the infer stage: dataset and model come from the config by `_target_`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espnet3.components.data.data_organizer import fingerprint_of, is_organized, organizer_of, same_data
from espnet3.components.instantiate import instantiate_block
from espnet3.parallel.inference_provider import InferenceProvider as _InferenceProvider

__all__ = ["InferenceProvider", "fingerprint_of", "instantiate_block"]


class InferenceProvider(_InferenceProvider):
    """Instantiates `config.dataset` and `config.model` with Hydra.

    Args:
        infer_config: The inference config, any mapping; it needs the blocks `dataset` and `model`,
            each with a `_target_`. When it also holds `dataset_fingerprint` (the infer stage puts
            it there), a process whose dataset has another fingerprint refuses to work on it.
        params: Further env entries: `input_key`, `output_fn_path`, `model_kwargs`, ...
        inference_config: Another name of `infer_config`.
    """

    def __init__(
        self,
        infer_config: Any = None,
        params: Mapping[str, Any] | None = None,
        *,
        inference_config: Any = None,
    ) -> None:
        super().__init__(infer_config, params, inference_config=inference_config)

    @staticmethod
    def build_dataset(config: Any) -> Any:
        """Instantiate `config.dataset`, or the test set `config.test_set` of its `test` entries."""
        if is_organized(config.get("dataset")):
            dataset = organizer_of(config).test[config["test_set"]]
        else:
            dataset = instantiate_block(config, "dataset")
        return same_data(dataset, config.get("dataset_fingerprint"))

    @staticmethod
    def build_model(config: Any) -> Any:
        """Instantiate `config.model`."""
        return instantiate_block(config, "model")
