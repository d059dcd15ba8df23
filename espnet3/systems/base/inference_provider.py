"""The provider of the infer stage: dataset and model come from the config by `_target_`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espnet3.parallel.inference_provider import InferenceProvider as _InferenceProvider


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
        """Instantiate `config.dataset`.

        Raises:
            ValueError: The block or its `_target_` is missing.
            RuntimeError: This process sees other data than the driver did.
        """
        dataset = instantiate_block(config, "dataset")
        wanted = config.get("dataset_fingerprint")
        if wanted is not None and (found := fingerprint_of(dataset)) != wanted:
            raise RuntimeError(
                f"the dataset {type(dataset).__name__} has the fingerprint {found} in this process and had "
                f"{wanted} where the run was started: the data changed meanwhile, or another folder is "
                "mounted here; start the run again, or make both see the same files"
            )
        return dataset

    @staticmethod
    def build_model(config: Any) -> Any:
        """Instantiate `config.model`.

        Raises:
            ValueError: The block or its `_target_` is missing.
        """
        return instantiate_block(config, "model")


def fingerprint_of(dataset: Any) -> str | None:
    """Return `dataset.fingerprint()` where the dataset has that method: a hash of its content."""
    fingerprint = getattr(dataset, "fingerprint", None)
    return None if fingerprint is None else str(fingerprint())


def instantiate_block(config: Any, name: str, **kwargs: Any) -> Any:
    """Instantiate one block of a config by its `_target_`.

    Args:
        config: A mapping of blocks.
        name: Key of the block.
        **kwargs: Further arguments of the target.

    Raises:
        ValueError: The block is not there, or has no `_target_`.
    """
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
