"""What computes features of a dataset's items: a block `features` of a config, or the `collect_feats` of its model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espnet3.components.instantiate import instantiate_block

_LENGTHS = "_lengths"
_ONLY = "feats"  # what a feature is called that has no name of its own

Features = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def make_features(config: Any) -> Features:
    """Return the function from an item to its features by name.

    The block `features` of the config makes an object that is called with the fields `input_key` (default `speech`) of
    an item and returns an array (frames, dimensions), or several by name. Without that block, the block `model` makes
    an object with the method `collect_feats`, called with the arrays of a batch of one item and their lengths
    (`speech`, `speech_lengths`, ...), which returns arrays and lengths likewise.
    """
    if config.get("features") is not None:
        return Frontend(instantiate_block(config, "features"), config.get("input_key") or "speech")
    model = instantiate_block(config, "model")
    if not callable(getattr(model, "collect_feats", None)):
        raise TypeError(
            f"{type(model).__name__} has no method collect_feats: write it, or name what computes the features in a "
            "block 'features'"
        )
    return ModelFeatures(model)


def features_of_list(features: Features, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the features of several items, computed in one call where the object takes lists."""
    if isinstance(features, Frontend) and features.takes_lists and len(items) > 1:
        return features.of_list(items)
    return [features(item) for item in items]


class Frontend:
    """Calls an object with fields of an item.

    One with `supports_batch = True` is given lists, one entry for each item of a batch, and returns a list; its answer
    for an item must not depend on the others, to the last bit.
    """

    def __init__(self, compute: Callable[..., Any], keys: str | Sequence[str]) -> None:
        self.compute = compute
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        self.takes_lists = bool(getattr(compute, "supports_batch", False))

    def __call__(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an item's features by name."""
        return _by_name(self.compute(**{key: _field(item, key) for key in self.keys}))

    def of_list(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the features of several items."""
        found = self.compute(**{key: [_field(item, key) for item in items] for key in self.keys})
        if not isinstance(found, (list, tuple)) or len(found) != len(items):
            got = len(found) if isinstance(found, (list, tuple)) else f"a {type(found).__name__}"
            raise ValueError(
                f"{type(self.compute).__name__} was given lists of {len(items)} items and returned {got}: return a "
                "list with an entry for each, or set supports_batch = False on it"
            )
        return [_by_name(one) for one in found]


def arrays_of(item: Any) -> dict[str, Any]:
    """Return those fields of an item that have a shape."""
    fields = item if isinstance(item, Mapping) else {}
    return {name: value for name, value in fields.items() if getattr(value, "shape", ())}


def _field(item: Mapping[str, Any], key: str) -> Any:
    if key not in item:
        raise KeyError(f"the item has no field {key!r} (it has {', '.join(map(repr, item))}); set input_key")
    return item[key]


def _by_name(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {_ONLY: found}


class ModelFeatures:
    """Calls `collect_feats` of a model with a batch of one item; a torch module is given tensors, on its own device.

    One item, because padding beside a longer one may change the last bits of its features.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        torch = sys.modules.get("torch")  # only a process that has loaded it can hold a module
        self.torch = torch if torch is not None and isinstance(model, torch.nn.Module) else None
        if self.torch is not None:
            model.eval()

    def __call__(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an item's features by name."""
        import numpy

        arrays = arrays_of(item)
        batch = {name: numpy.asarray(value)[None] for name, value in arrays.items()}
        batch |= {f"{name}{_LENGTHS}": numpy.array([len(value)]) for name, value in arrays.items()}
        found = self._collect(batch)
        features = {}
        for name, value in found.items():
            if name.endswith(_LENGTHS):
                continue
            # without lengths there are no frames: the item is one
            length = found.get(f"{name}{_LENGTHS}")
            features[name] = value[0][: int(length[0])] if length is not None else value[0][None]
        return features

    def _collect(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.torch is None:
            return self.model.collect_feats(**batch)  # type: ignore[no-any-return]  # the user's
        device = next(iter(self.model.parameters()), self.torch.empty(0)).device
        with self.torch.no_grad():
            found = self.model.collect_feats(
                **{name: self.torch.as_tensor(value, device=device) for name, value in batch.items()}
            )
        return {
            name: value.detach().cpu().numpy() if hasattr(value, "detach") else value
            for name, value in found.items()
        }
