"""From a recording to its text: a model on the workers of the `parallel` block, loaded before the first call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import NoSamplesError, read_audio
from espnet3.components.instantiate import as_plain, instantiate_block
from espnet3.parallel import get_client
from espnet3.parallel.checks import Number, Whole
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.configs.mistakes import NEEDED, check_block, require

logger = logging.getLogger(__name__)

_INPUT = {
    "rate": Whole(least=1, example="16000"),
    "max_seconds": Number(above=0, called="a positive number", example="60"),
}

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
            said = f"This recording could not be recognised ({type(error).__name__})"
            return f"{said}; the page's log has the details. Others may still work."
        return str(text).strip() or "No words were found in this recording."


@contextmanager
def warm_recognition(config: Any) -> Iterator[Recognition]:
    """Start the workers of a demo config, load its model in each, and keep them for a `with` block.

    See `espnet3.systems.demo.page.demo` for its blocks. Yield the function behind the page. A wrong block or a missing
    model is a ConfigError, a model that cannot be loaded a WorkerSetupError.
    """
    require(config, "demo", NEEDED["demo"])
    # these keys alone: others may refer to a training config that is not there
    model, kwargs = (as_plain(config.get(key)) or {} for key in ("model", "model_kwargs"))
    wanted = check_block(config.get("input"), "demo", "input", _INPUT)
    with stage_parallel(config), get_client(setup_fn=partial(_load, model)) as opened:
        client: Any = opened  # distributed says that it is typed, and mostly is not
        workers = client.espnet3_config.n_workers
        client.wait_for_workers(workers, timeout=client.espnet3_config.start_timeout)
        # one task for each worker, which is pinned to it
        client.gather([client.submit(_is_loaded, workers=[each], pure=False) for each in client.nthreads()])
        yield Recognition(lambda speech: client.submit(_call, speech, kwargs, pure=False).result(), **wanted)


# a recording as a person brings it


class RefusedError(ValueError):
    """A recording is not taken; the text is for the person at the page."""


def read_recording(path: str | Path | None, rate: int, max_seconds: float) -> Any:
    """Read a recording as a model wants it: 16-bit mono, its channels averaged, brought to a rate in hertz.

    A file without audio, an empty one and one that is too long are a RefusedError.
    """
    if path is None:
        raise RefusedError("Choose a sound file or record something first.")
    path = Path(path)
    try:
        samples, found = read_audio(path, path.name, end=max_seconds + 1)
    except NoSamplesError:
        raise RefusedError(f"{path.name} holds no sound: it is 0 seconds long.") from None
    except (OSError, ValueError):  # libsndfile's own words would say little to the person at the page
        empty = path.is_file() and not path.stat().st_size
        kind = "is empty" if empty else "is not a sound file that can be read"
        raise RefusedError(f"{path.name} {kind}. A wav, flac or ogg file will do.") from None
    if len(samples) > max_seconds * found:
        raise RefusedError(f"{path.name} is longer than {max_seconds:g} seconds; give a shorter one.")
    import numpy

    mono = samples.mean(axis=1) if samples.ndim > 1 else samples
    # read_audio divides by 2 ** 15: this gives back the samples of a 16-bit file as they were
    whole = numpy.rint(numpy.nan_to_num(_resampled(mono, found, rate)) * 32768.0)
    return whole.clip(-32768, 32767).astype(numpy.int16)


def _resampled(samples: Any, found: int, wanted: int) -> Any:
    import numpy

    if found == wanted:
        return samples
    length = max(1, round(len(samples) * wanted / found))
    spectrum = numpy.fft.rfft(samples)[: length // 2 + 1]
    return numpy.fft.irfft(spectrum, n=length) * (length / len(samples))


# on the workers


def _load(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"demo_model": instantiate_block({"model": block}, "model")}


def _is_loaded(demo_model: Any) -> bool:
    return demo_model is not None


def _call(speech: Any, kwargs: Mapping[str, Any], demo_model: Any) -> Any:
    return demo_model(speech, **kwargs)
