"""The demo stage: workers with the model, and the page in front of them, until it is stopped."""

from __future__ import annotations

import inspect
import logging
import threading
from typing import Any

from espnet3.systems.configs.mistakes import StageConfigError
from espnet3.systems.demo.page import LOOPBACK, build_page, require_gradio, ui_of
from espnet3.systems.demo.recognition import warm_recognition

logger = logging.getLogger(__name__)


def demo(config: Any, stop: threading.Event | None = None) -> str:
    """Show the page until Ctrl-C.

    The config has:

    - `model`: a block with a `_target_`, called with 16-bit mono samples;
    - `model_kwargs` (optional): further arguments of each call;
    - `input` (optional): `rate` (16000), which recordings are brought to, and `max_seconds` (60);
    - `ui` (optional): `title`, `description`, `host` (127.0.0.1: this machine alone) and `port` (7860);
    - `parallel` (optional): the workers, which hold the model for as long as the page is there.

    Args:
        config: A mapping or an OmegaConf config.
        stop: Ends the page when it is set; None: only Ctrl-C does.

    Returns:
        The page's address.

    Raises:
        ConfigError: A block is wrong, there is no model, or the port is in use.
        MissingPackageError: gradio is not installed.
        WorkerSetupError: The model cannot be loaded.
    """
    ui = ui_of(config.get("ui"))
    gradio = require_gradio()  # before workers are started
    stop = stop or threading.Event()
    with warm_recognition(config) as recognise:
        page = build_page(recognise, ui)
        # system fonts: those of gradio's own themes are fetched from the network
        look = {"theme": gradio.themes.Base(font=["sans-serif"], font_mono=["monospace"])}
        known = inspect.signature(page.launch).parameters
        page.theme = look["theme"]  # before gradio 6
        try:
            page.launch(
                server_name=ui["host"],
                server_port=ui["port"],
                share=False,
                prevent_thread_lock=True,
                quiet=True,
                **(look if "theme" in known else {}),
            )
        except OSError as error:
            said = f"the page cannot be shown at {ui['host']}:{ui['port']} ({error}); choose another ui.port"
            raise StageConfigError("demo", "ui.port", said) from error
        address = f"http://{ui['host']}:{ui['port']}/"
        try:
            if ui["host"] not in (LOOPBACK, "localhost", "::1"):
                logger.warning("demo: ui.host is %s, so whoever reaches this machine can use it", ui["host"])
            print(f"The demo is at {address}; Ctrl-C ends it.", flush=True)
            stop.wait()
        except KeyboardInterrupt:
            logger.info("demo: ended by Ctrl-C")
        finally:
            page.close()
    return address
