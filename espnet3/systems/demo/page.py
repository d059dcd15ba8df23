"""The page, made with gradio: nothing on it comes from the network, and nothing is told to anybody."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from espnet3.parallel.backends.loading import pip_line
from espnet3.parallel.errors import MissingPackageError
from espnet3.systems.configs.mistakes import StageConfigError

LOOPBACK = "127.0.0.1"
UI = {
    "title": "Speech recognition",
    "description": "Drop a sound file or record something, and read the text.",
    "host": LOOPBACK,
    "port": 7860,
}
"""What the block `ui` of a demo config may hold, with the values that it has without it."""


def ui_of(block: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the block `ui` with its defaults.

    Raises:
        StageConfigError: It has a key that is none, or a port that is none.
    """
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
    """Import gradio without its telemetry.

    Raises:
        MissingPackageError: It is not installed.
    """
    # read when gradio is imported and when it starts
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio
    except ImportError as error:
        raise MissingPackageError(
            f"the demo stage needs gradio, which is not installed: {pip_line('demo')}", name="gradio"
        ) from error
    return gradio


def build_page(recognise: Callable[[str | None], str], ui: Mapping[str, Any]) -> Any:
    """Return the page, a gradio `Blocks`.

    Args:
        recognise: From the path of a recording to its text.
        ui: Of `ui_of`.
    """
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
