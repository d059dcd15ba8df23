"""From a recording to its text: a model on the workers of the `parallel` block, loaded before the first call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from espnet3.components.instantiate import as_plain, instantiate_block
from espnet3.parallel import get_client
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.configs.mistakes import StageConfigError, require
from espnet3.systems.demo.recordings import RefusedError, read_recording

logger = logging.getLogger(__name__)

Answer = Callable[[Any], Any]
"""Samples to what the model says of them."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """The function behind the page."""

    answer: Answer
    rate: int = 16000  # samples a second that the model wants
    max_seconds: float = 60.0  # longer recordings are refused

    def __call__(self, path: str | None) -> str:
        """Return the text of a sound file, or a sentence on why there is none; raises nothing."""
        try:
            text = self.answer(read_recording(path, self.rate, self.max_seconds))
        except RefusedError as refused:
            return str(refused)
        except Exception as error:
            logger.exception("demo: a recording was not recognised")
            return (
                f"This recording could not be recognised ({type(error).__name__}); "
                "the page's log has the details. Others may still work."
            )
        return str(text).strip() or "No words were found in this recording."


@contextmanager
def warm_recognition(config: Any) -> Iterator[Recognition]:
    """Start the workers of a demo config, load its model in each, and keep them for a `with` block.

    Args:
        config: With `model`, a block with a `_target_`; `model_kwargs` (optional), further arguments of each call;
            `input` (optional), `rate` and `max_seconds`; `parallel` (optional).

    Yields:
        The function behind the page.

    Raises:
        ConfigError: The block `parallel` is wrong, or the config has no model.
        WorkerSetupError: The model cannot be loaded.
    """
    require(config, "demo", ("model",))
    # these keys alone: others may refer to a training config that is not there
    plain = {key: as_plain(config.get(key)) for key in ("model", "model_kwargs", "input")}
    kwargs = plain.get("model_kwargs") or {}
    wanted = _input_of(plain.get("input"))
    with (
        stage_parallel(config),
        get_client(setup_fn=partial(_load, plain["model"])) as opened,
    ):
        client: Any = opened  # distributed says that it is typed, and mostly is not
        workers = client.espnet3_config.n_workers
        client.wait_for_workers(workers, timeout=client.espnet3_config.start_timeout)
        loading = [
            client.submit(_is_loaded, number, workers=[address], pure=False)
            for number, address in enumerate(client.nthreads())
        ]
        client.gather(loading)

        def answer(speech: Any) -> Any:
            return client.submit(_call, speech, kwargs, pure=False).result()

        yield Recognition(answer, **wanted)


def _input_of(block: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the block `input`."""
    known: dict[str, Any] = {"rate": int, "max_seconds": (int, float)}
    for key, value in (block or {}).items():
        if key not in known:
            raise StageConfigError(
                "demo", f"input.{key}", f"input.{key} is not known; input has {', '.join(known)}"
            )
        if isinstance(value, bool) or not isinstance(value, known[key]) or value <= 0:
            said = f"input.{key} = {value!r}: must be a positive number, such as {16000 if key == 'rate' else 60}"
            raise StageConfigError("demo", f"input.{key}", said)
    return dict(block or {})


# on the workers


def _load(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"demo_model": instantiate_block({"model": block}, "model")}


def _is_loaded(number: int, demo_model: Any) -> bool:
    return demo_model is not None


def _call(speech: Any, kwargs: Mapping[str, Any], demo_model: Any) -> Any:
    return demo_model(speech, **kwargs)
