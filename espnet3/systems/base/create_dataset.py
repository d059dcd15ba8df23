"""The create_dataset stage: every dataset of a config, from its source, where it is not complete."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from espnet3.components.data.data_organizer import (
    BUILDER,
    SPLITS,
    DatasetEntry,
    is_organized,
    load_dataset_module,
)
from espnet3.components.instantiate import as_plain, instantiate_block
from espnet3.systems.base.blocks import stage_parallel

logger = logging.getLogger(__name__)


def create_dataset(config: Any) -> bool:
    """Build what a config needs.

    The config has one of:

    - `create_dataset` with a `_target_`: the builder, made from the block;
    - `dataset.train`, `valid`, `test`: for each module that their entries name (`data_src`, or the recipe's own
      `dataset`), its `DatasetBuilder`, made without arguments; the block `create_dataset` then holds the arguments of
      its four methods. Nothing is built for an entry with a `_target_`.

    `parallel` (optional) is registered while the stage runs, for builders that use a runner.

    Return whether something was built now. A wrong entry is a ConfigError, a source that cannot be had a SourceError.
    """
    with stage_parallel(config):
        done = [_ensure(builder, arguments) for builder, arguments in _builders(config)]
    return any(done)


def _builders(config: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    arguments = as_plain(config.get("create_dataset")) or {}
    dataset = config.get("dataset")
    if "_target_" in arguments or not is_organized(dataset):
        yield instantiate_block(config, "create_dataset"), {}
        return
    seen = set()
    for split in SPLITS:
        for at, raw in enumerate(dataset.get(split) or ()):
            entry = DatasetEntry.read(raw, f"dataset.{split}.{at}")
            if entry.target is None and entry.data_src not in seen:
                seen.add(entry.data_src)
                module = load_dataset_module(entry.data_src, config.get("recipe_dir"))
                if hasattr(module, BUILDER):
                    yield getattr(module, BUILDER)(), arguments
                else:
                    logger.info("%s has no %s: nothing to build", module.__file__, BUILDER)


def _ensure(builder: Any, arguments: Mapping[str, Any]) -> bool:
    name = type(builder).__name__
    if hasattr(builder, "is_built") and builder.is_built(**arguments):
        logger.info("%s: already built", name)
        return False
    if hasattr(builder, "is_source_prepared") and not builder.is_source_prepared(**arguments):
        logger.info("%s: preparing the source", name)
        builder.prepare_source(**arguments)
    builder.build(**arguments)
    return True
