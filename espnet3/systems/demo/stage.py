"""The demo stage: workers with the model, and the page in front of them, until it is stopped."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from espnet3.parallel.local.pages import link_with, new_secret
from espnet3.systems.configs.mistakes import StageConfigError
from espnet3.systems.demo.page import LOOPBACK, Door, build_page, require_gradio, ui_of
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

    It returns the page's address when it has ended, which the event `stop` does too. A wrong block, or a port in use,
    is a ConfigError; a model that cannot be loaded is a WorkerSetupError.
    """
    ui = ui_of(config.get("ui"))
    gradio = require_gradio()  # before workers are started
    from starlette.middleware import Middleware  # gradio's own

    stop = stop or threading.Event()
    with warm_recognition(config) as recognise, _private_folder():
        page = build_page(recognise, ui)
        secret = new_secret()
        try:
            page.launch(
                server_name=ui["host"],
                server_port=ui["port"],
                share=False,
                prevent_thread_lock=True,
                quiet=True,
                ssr_mode=False,  # its server would listen beside the door
                app_kwargs={"middleware": [Middleware(Door, secret=secret)]},
                # system fonts: those of gradio's own themes are fetched from the network
                theme=gradio.themes.Base(font=["sans-serif"], font_mono=["monospace"]),
            )
        except OSError as error:
            said = f"the page cannot be shown at {ui['host']}:{ui['port']} ({error}); choose another ui.port"
            raise StageConfigError("demo", "ui.port", said) from error
        address = f"http://{ui['host']}:{ui['port']}/"
        try:
            if ui["host"] not in (LOOPBACK, "localhost", "::1"):
                logger.warning(
                    "demo: ui.host is %s: the link, and recordings, travel through the network in the clear",
                    ui["host"],
                )
            print(f"The demo is at {link_with(secret, address)} (Ctrl-C ends it)", flush=True)
            stop.wait()
        except KeyboardInterrupt:
            logger.info("demo: ended by Ctrl-C")
        finally:
            page.close()
    return address


@contextmanager
def _private_folder() -> Iterator[None]:
    """Have gradio keep recordings in a folder for this user alone, which is removed at the end."""
    name = "GRADIO_TEMP_DIR"
    before = os.environ.get(name)
    with TemporaryDirectory(prefix="espnet3-demo-") as folder:  # mode 0700
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before
