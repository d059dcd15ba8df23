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
from urllib.parse import parse_qs

from espnet3.components.instantiate import require
from espnet3.systems.configs.mistakes import StageConfigError
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
                logger.warning(
                    "demo: ui.host is %s: the link, and recordings, travel through the network in the clear",
                    ui["host"],
                )
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
    block = block or {}
    for key in block:
        if key not in UI:
            raise StageConfigError("demo", f"ui.{key}", f"ui.{key} is not known; ui has {', '.join(UI)}")
    ui = {**UI, **block}
    port = ui["port"]
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise StageConfigError("demo", "ui.port", f"ui.port = {port!r}: must be a number from 1 to 65535")
    return ui


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
        if scope["type"] not in ("http", "websocket") or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif any(_same(token, self._secret) for token in _tokens(scope)):
            cookie = f"{self._cookie}={self._value}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, [(b"location", b"."), (b"set-cookie", cookie.encode())])
        else:
            # gradio asks with HEAD whether its page is there: 401 tells it so
            await _answer(send, 401 if scope["method"] == "HEAD" else 403, [])

    def _may_pass(self, scope: Any) -> bool:
        if scope["path"].endswith("/startup-events"):  # gradio's own first request, which gives away nothing
            return True
        sent = b";".join(value for name, value in scope["headers"] if name == b"cookie").decode("latin-1")
        given = dict(one.strip().partition("=")[::2] for one in sent.split(";"))
        return _same(given.get(self._cookie, ""), self._value)


def _tokens(scope: Any) -> list[str]:
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [])


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    text = (
        b"" if status == 303 else b"This page is open to those who have the link that the demo has printed.\n"
    )
    headers = [*headers, (b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def build_page(recognise: Callable[[str | None], str], ui: Mapping[str, Any]) -> Any:
    """Return the page, a gradio `Blocks`, for a function from the path of a recording to its text."""
    gradio = require_gradio()
    with gradio.Blocks(title=ui["title"], analytics_enabled=False) as page:
        gradio.Markdown(f"# {ui['title']}\n{ui['description']}")
        with gradio.Row():
            # not gradio's Audio for files: its own message would stand there for what is none
            file = gradio.File(label="Sound file", type="filepath")
            microphone = gradio.Audio(label="Record", sources=["microphone"], type="filepath", format="wav")
        text = gradio.Textbox(label="Text", interactive=False, lines=3, elem_id="text")
        for given in (file, microphone):
            given.change(
                lambda path: "" if path is None else recognise(path),
                inputs=given,
                outputs=text,
                api_name=False,
            )
    return page
