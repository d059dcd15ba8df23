"""Outputs that are no text: each in a file of its own, whose path stands in the `.scp` file."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from espnet3.components.data.files import utterance_id, write_atomic
from espnet3.components.instantiate import as_plain, load_function
from espnet3.components.instantiate import require as needed
from espnet3.parallel.checks import Whole
from espnet3.parallel.messages import did_you_mean
from espnet3.systems.base.scp import is_array
from espnet3.systems.configs.mistakes import wrong

_SUFFIXES = {"wav": ".wav", "npy": ".npy", "json": ".json", "pickle": ".pkl"}
_RATE = Whole(least=1, example="16000")


def check_artifacts(block: Any, role: str, key: str) -> dict[str, dict[str, Any]]:
    """Return the block `output_artifacts` of a config, or one like it under another key, plain.

    Each output has `type` (wav, with `sample_rate`; npy, json or pickle), or `writer`, a block whose `_target_` is a
    function called as `writer(value=..., output_path=..., **options)`, which returns the path that it has written.
    """
    plain = as_plain(block) or {}
    for name, how in plain.items():
        where = f"{key}.{name}"
        if not isinstance(how, Mapping) or not ("type" in how or "writer" in how):
            said = f"= {how!r}: must be such as {{type: npy}}, or have a writer with a _target_"
            raise wrong(role, where, said)
        if "writer" in how and not (isinstance(how["writer"], Mapping) and how["writer"].get("_target_")):
            raise wrong(role, f"{where}.writer", "has no _target_, the import path of a function")
        if "writer" not in how and how["type"] not in _SUFFIXES:
            hint = did_you_mean(how["type"], _SUFFIXES)
            said = f"= {how['type']!r}: must be one of {', '.join(_SUFFIXES)}.{hint}"
            raise wrong(role, f"{where}.type", said)
        if how.get("type") == "wav" and (refusal := _RATE.refusal(how.get("sample_rate"))):
            said = f"= {how.get('sample_rate')!r}: a wav file needs its rate; {refusal}"
            raise wrong(role, f"{where}.sample_rate", said)
    return dict(plain)


def kept(value: Any, how: Mapping[str, Any] | None, folder: Path | None, uid: Any) -> Any:
    """Return a value that a line can hold as it is; of another one, the path of its file in a folder.

    Without a way in the config arrays go to .npy and dicts to .json; an array of one number becomes that number, and
    lists and other objects are left as they are.
    """
    array = is_array(value)
    if array and math.prod(getattr(value, "shape", ())) == 1 and (how is None or not value.shape):
        return value.item()  # a view of a tensor would travel with all of the tensor
    if isinstance(value, (str, int, float)) or (how is None and not array and not isinstance(value, Mapping)):
        return value
    if folder is None:
        if how is None:
            return value
        said = "give the runner an output_dir; a forward of your own passes on output_dir and shard_subdir"
        raise ValueError(f"output_artifacts needs a folder: {said}")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    how = how or {"type": "npy" if array else "json"}
    name = utterance_id(uid)
    if "/" in name or name in (".", ".."):
        raise ValueError(
            f"the utterance id {name!r} cannot be the name of a file: replace '/', for example by '_'"
        )
    path = folder / name
    if "writer" in how:
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {name: each for name, each in how.items() if name not in ("writer", "type")} | how["writer"]
        target = options.pop("_target_")
        written = Path(load_function(target, "writer")(value=value, output_path=path, **options))
        if not written.exists():
            raise FileNotFoundError(f"the writer {target} returned {written}, which is not there")
        return str(written)
    path = path.with_name(name + _SUFFIXES[how["type"]])
    write_atomic(path, lambda file: _write(file, value, how), sole=False)
    return str(path)


def _write(file: IO[bytes], value: Any, how: Mapping[str, Any]) -> None:
    if how["type"] == "wav":
        soundfile = needed("soundfile", "recipe", "a wav file")
        soundfile.write(file, value, how["sample_rate"], format="WAV")
    elif how["type"] == "npy":
        import numpy

        numpy.save(file, numpy.asarray(value), allow_pickle=False)
    elif how["type"] == "json":
        file.write(json.dumps(as_plain(value), ensure_ascii=False, default=_jsonable).encode("utf-8"))
    else:
        pickle.dump(value, file)


def _jsonable(value: Any) -> Any:
    if not is_array(value):
        raise TypeError(f"JSON has no {type(value).__name__}; take type: pickle, or a writer")
    return value.tolist()
