"""The messages of scripts while they work, and the log of each stage."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.parallel.messages import masked

_OURS = ("espnet3", "dataset", "src")
_LINE = "%(asctime)s %(levelname)s %(message)s"


def show_logs(level: int = logging.INFO) -> None:
    """Show this project's messages on standard error, and only warnings of everything else.

    The handler sits on our loggers, not on the root: there it would also print each step of the
    Dask scheduler.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_LINE, "%H:%M:%S"))
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.propagate = False


@contextmanager
def stage_log(stage: str, config: Any, key: str) -> Iterator[None]:
    """Add what is said in a `with` block to `<stage>.log`, in the folder of a config's `log_dir`, else of a dotted key.

    It begins with the command line and the config, and has the traceback of an error; secrets are masked. Without such
    a folder there is no log.
    """
    folder = _folder(config, key)
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"{stage}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter(_LINE))
    loggers = [logging.getLogger(name) for name in _OURS]
    levels = [logger.level for logger in loggers]
    plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    _tell(handler, f"stage {stage} on {platform.node()}, Python {platform.python_version()}")
    _tell(handler, f"command: {shlex.join(masked(sys.orig_argv))}")
    _tell(handler, f"config: {json.dumps(masked(plain), indent=1, ensure_ascii=False, default=str)}")
    for logger in loggers:
        logger.setLevel(logger.level or logging.INFO)
    heard = [logging.getLogger(), *(logger for logger in loggers if not logger.propagate)]
    for logger in heard:
        logger.addHandler(handler)
    try:
        yield
    except BaseException:
        _tell(handler, f"stage {stage} failed\n{masked(traceback.format_exc())}", logging.ERROR)
        raise
    finally:
        for logger in heard:
            logger.removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        handler.close()


def _folder(config: Any, key: str) -> Path | None:
    if config is None:
        return None
    try:
        found = config.get("log_dir") or reduce(lambda block, name: block.get(name), key.split("."), config)
    except (AttributeError, OmegaConfBaseException):  # as the stage will say, if it needs the key
        return None
    return Path(found) if found and isinstance(found, (str, os.PathLike)) else None


def _tell(handler: logging.Handler, text: str, level: int = logging.INFO) -> None:
    handler.handle(logging.LogRecord("espnet3", level, __file__, 0, text, None, None))
