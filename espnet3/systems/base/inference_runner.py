"""The runner of the infer stage: dataset item -> model -> output function -> `.scp` files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from espnet3.components.data.files import answers, check_each
from espnet3.components.instantiate import load_function
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.checks import loaded
from espnet3.systems.base.artifacts import kept
from espnet3.systems.base.scp import (
    IDX_KEY,
    ScpWriter,
    check_output,
    key_list,
    output_keys_of,
    read_scp,
    write_scp,
)

logger = logging.getLogger(__name__)


class InferenceRunner(BaseRunner):
    """Runs a model over a dataset and writes one `.scp` file per output key.

    The provider supplies `dataset`, `model` and these settings:

    - `input_key`: the field, or the fields, of a dataset item that the model is given by name;
    - `output_fn`, or `output_fn_path` ("package.module.function"): called as `output_fn(data=item, model_output=output,
      idx=index)`, returns the result dict. Without one the model returns that dict itself;
    - `model_kwargs`: further keyword arguments of each model call;
    - `output_artifacts`: how outputs that are no text are written, see `check_artifacts`; arrays go to .npy files, and
      dicts to .json, without it: `<output_dir>/<key>/<utt_id>.npy`, whose path stands in the `.scp` file;
    - `evaluate` (True): a torch module is put into evaluation mode, and nothing computes gradients. False leaves both
      as the provider has made them.

    A result is a dict with a single value under `idx_key` and an entry for every output key. An entry that is a list
    goes to one file per place: `hyp0.scp`, `hyp1.scp`, ...

    With `output_dir` the files are written there after the run, in the order of the indices; those of a detached run by
    its `merge`. Items that failed (`on_error="record"`) are left out of them, listed in `errors.jsonl` and counted in a
    warning.

    With `batch_size` the model is given a list for each input key. When it returns a list with one entry per item,
    `output_fn` is called for each item as before; anything else is passed on, with lists as `data` and `idx`, and
    `output_fn` must return one dict per item. A model that cannot take lists says so with `supports_batch = False`; one
    that raises instead is called again item by item. A batch of one is always an ordinary call.

    Args:
        provider: Supplies the env.
        idx_key: Key of the utterance id in the results.
        hyp_key: Key or keys of the hypotheses; None for none.
        ref_key: Key or keys of the references; None for none.
        output_keys: Replaces both, for results that are neither.
        text_key: The output key that is also written as a Kaldi `text` file, sorted by id; None for none.
        **kwargs: Of `BaseRunner`: `batch_size`, `output_dir`, `on_error`, ...
    """

    def __init__(
        self,
        provider: Any,
        *,
        idx_key: str = IDX_KEY,
        hyp_key: str | Sequence[str] | None = "hyp",
        ref_key: str | Sequence[str] | None = "ref",
        output_keys: str | Sequence[str] | None = None,
        text_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(provider, **kwargs)
        self.idx_key = idx_key
        self.text_key = text_key
        self.output_keys = output_keys_of(output_keys, hyp_key, ref_key)
        names = [idx_key, *self.output_keys]
        if len(set(names)) < len(names):
            said = f"idx_key {idx_key!r} and the output keys {self.output_keys} must all differ"
            raise ValueError(f"{said}; each output key names a file")

    @staticmethod
    def forward(
        idx: Any,
        dataset: Any = None,
        model: Any = None,
        output_dir: str | None = None,
        shard_subdir: str = "",
        **kwargs: Any,
    ) -> Any:
        """Return the result of one dataset item, or a list of results for a list of indices; see the class."""
        env = {**kwargs, "output_dir": output_dir, "shard_subdir": shard_subdir}
        if isinstance(idx, (list, tuple)):
            return InferenceRunner.batch_forward(idx, dataset, model, **env)
        return InferenceRunner.batch_forward([idx], dataset, model, **env)[0]

    @staticmethod
    def batch_forward(
        indices: Sequence[Any],
        dataset: Any = None,
        model: Any = None,
        output_dir: str | None = None,
        shard_subdir: str = "",
        **kwargs: Any,
    ) -> list[Any]:
        """Return one result per index, from one call of the model where it takes lists."""
        indices = list(indices)
        env = {**kwargs, "output_dir": output_dir, "shard_subdir": shard_subdir}
        if not (keys := key_list(env.get("input_key"))):
            raise RuntimeError(
                "input_key must be provided: the dataset field, or fields, that the model is given "
                "(`input_key: speech` in the inference config, or an entry of the provider's params)"
            )
        output_fn = env.get("output_fn")
        if output_fn is None and (path := env.get("output_fn_path")):
            output_fn = load_function(path)
        items = [dataset[idx] for idx in indices]
        with _evaluating(model, env):
            results = answers(model, items, keys, env.get("model_kwargs") or {}, lists=True)
            if output_fn is not None and isinstance(results, list) and len(results) == len(indices):
                results = [
                    output_fn(data=data, model_output=one, idx=idx)
                    for data, one, idx in zip(items, results, indices, strict=True)
                ]
            elif output_fn is not None:
                results = output_fn(data=items, model_output=results, idx=indices)
        check_each(results, len(indices), "the model, or output_fn,")
        return [_checked(result, idx, env) for idx, result in zip(indices, results, strict=True)]

    def write_outputs(self, indices: Sequence[Any], results: Sequence[Any]) -> None:
        """Check the results of some indices and, with `output_dir`, write the `.scp` files of a finished run."""
        writer = ScpWriter(self.idx_key, self.output_keys)
        for idx, result in zip(indices, results, strict=True):
            writer.add(idx, result)
        if writer.failures:
            first = writer.failures[0]
            said = "%d of %d items failed and are not in the .scp files; the first: item %r, %s: %s"
            counts = len(writer.failures), len(results)
            logger.warning(said, *counts, first.index, first.error_type, first.message)
        if self.output_dir is None:
            return
        folder = Path(self.output_dir) / self.shard_subdir
        writer.write(folder)
        if self.text_key is not None:
            rows = read_scp(folder / f"{self.text_key}.scp")
            write_scp(folder / "text", sorted(rows.items()))  # by id, in code point order


def _evaluating(model: Any, env: Mapping[str, Any]) -> AbstractContextManager[Any]:
    torch = loaded("torch")  # only a process that has loaded it can hold a module
    if torch is None or not env.get("evaluate", True):
        return nullcontext()
    if isinstance(model, torch.nn.Module) and model.training:
        model.eval()
    return torch.no_grad()  # type: ignore[no-any-return]  # torch may be missing where types are checked


def _checked(result: Any, idx: Any, env: Mapping[str, Any]) -> Any:
    idx_key, output_keys = env.get("idx_key", IDX_KEY), key_list(env.get("output_keys"))
    if "idx_key" in env and "output_keys" in env:
        check_output(result, idx, idx_key, output_keys)
    if not isinstance(result, dict):
        return result
    ways = env.get("output_artifacts") or {}
    found = {}
    for key, value in result.items():
        written = key in output_keys if output_keys else key != idx_key
        folder = Path(env["output_dir"], env["shard_subdir"], key) if written and env["output_dir"] else None
        found[key] = kept(value, ways.get(key) if written else None, folder, result.get(idx_key))
    return found
