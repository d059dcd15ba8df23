"""The demo stage: workers with the model, and a page of gradio in front of them, until it is stopped.

Nothing on the page comes from the network, and nothing is told to anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from espnet3.components.instantiate import require
from espnet3.parallel.checks import Whole
from espnet3.systems.configs.mistakes import StageConfigError, check_block
from espnet3.systems.demo.recognition import warm_recognition

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
UI = {
    "title": "Speech recognition",
    "description": "Drop a sound file or record something, and read the text.",
    "host": LOOPBACK,
    "port": 7860,
}
"""The keys of the block `ui` of a demo config, with their default values."""
_REFUSED = "This page is open to those who have the link that the demo has printed.\n"
_FRESH = {"cache-control": "no-store"}


def demo(config: Any) -> str:
    """Show the page until Ctrl-C.

    The config has `model`, called with 16-bit mono samples and `model_kwargs`; `input` (optional) with `rate` (16000),
    which recordings are brought to, and `max_seconds` (60); and `ui` (optional), see `UI`. The workers of `parallel`
    hold the model for as long as the page is there.

    Return the page's address in the end. A wrong block, or a port in use, is a ConfigError; a model that cannot be
    loaded is a WorkerSetupError.
    """
    ui = ui_of(config.get("ui"))
    gradio = require_gradio()  # before workers are started
    from starlette.middleware import Middleware  # gradio's own

    with warm_recognition(config) as recognise, _private_folder():
        page = build_page(recognise, ui)
        secret = secrets.token_urlsafe(24)
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
                said = (
                    "demo: ui.host is %s: the link, and recordings, travel through the network in the clear"
                )
                logger.warning(said, ui["host"])
            print(f"The demo is at {address}?token={secret} (Ctrl-C ends it)", flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            logger.info("demo: ended by Ctrl-C")
        finally:
            page.close()
    return address


@contextmanager
def _private_folder() -> Iterator[None]:
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


def ui_of(block: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the block `ui` with its defaults."""
    port = Whole(least=1, most=65535, called="a number from 1 to 65535")
    return UI | check_block(block, "demo", "ui", dict.fromkeys(UI) | {"port": port})


def require_gradio() -> Any:
    """Import gradio without its telemetry."""
    # read when gradio is imported and when it starts
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return require("gradio", "demo", "the stage demo")


class Door:
    """Lets requests to the page pass that show the secret of its link, or the cookie that the link has given.

    Every account of a machine can connect to its loopback ports.
    """

    def __init__(self, app: Any, secret: str) -> None:
        self._app = app
        self._secret = secret
        # cookies know no ports: two pages of one machine would overwrite each other's
        self._cookie, self._value = (hashlib.sha256(f"{use} {secret}".encode()).hexdigest() for use in "nv")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse, RedirectResponse

        # gradio's own first request gives away nothing
        is_free = scope["type"] not in ("http", "websocket") or scope["path"].endswith("/startup-events")
        asked = None if is_free else HTTPConnection(scope)
        if asked is None or _same(asked.cookies.get(self._cookie, ""), self._value):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif any(_same(token, self._secret) for token in asked.query_params.getlist("token")):
            opened: Any = RedirectResponse(".", 303, _FRESH)  # typed, it takes no capital letter
            opened.set_cookie(self._cookie, self._value, httponly=True, samesite="Strict")
            await opened(scope, receive, send)
        else:
            # gradio asks with HEAD whether its page is there: 401 tells it so
            refused = PlainTextResponse(_REFUSED, 401 if scope["method"] == "HEAD" else 403, _FRESH)
            await refused(scope, receive, send)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def build_page(recognise: Callable[[str | None], str], ui: Mapping[str, Any]) -> Any:
    """Return the page, a gradio `Blocks`, for a function from the path of a recording to its text."""
    gradio = require_gradio()

    def answer(path: str | None) -> str:
        return "" if path is None else recognise(path)  # None: the recording was taken away

    with gradio.Blocks(title=ui["title"], analytics_enabled=False) as page:
        gradio.Markdown(f"# {ui['title']}\n{ui['description']}")
        with gradio.Row():
            # not gradio's Audio for files: its own message would stand there for what is none
            file = gradio.File(label="Sound file", type="filepath")
            microphone = gradio.Audio(label="Record", sources=["microphone"], type="filepath", format="wav")
        text = gradio.Textbox(label="Text", interactive=False, lines=3, elem_id="text")
        for given in (file, microphone):
            given.change(answer, inputs=given, outputs=text, api_name=False)
    return page
