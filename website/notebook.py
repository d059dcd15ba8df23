"""Pictures of a run in a cell of JupyterLab: its bar while it runs, and the tables that it ends with."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Page

CELLS = (
    """
import time
from espnet3.parallel import run, set_parallel

def half(i):
    time.sleep(0.05)
    if i % 40 == 7:
        raise ValueError(f"item {i} is odd")
    return {"half": i / 2}

set_parallel({"env": "local", "n_workers": 2})
found = run(half, range(200), on_error="record", output_dir="out")
""",
    "found[7]",
    "found",
    "found.to_pandas().head(3)",
)
SIZE = {"width": 1100, "height": 1350}
PART = {
    "x": 0,
    "y": 90,
    "width": 1060,
    "height": 715,
}  # for a page: a run and a failed item, without the folder's name
PATIENCE = 60_000  # milliseconds


def pictures(browser: Browser, folder: Path, target: Path, part: Path) -> None:
    """Run the cells in a browser, and take a picture while the first one runs and one when all have.

    Args:
        browser: An open Chromium.
        folder: Where the notebook is made and run.
        target: Where the pictures go.
        part: The file for a part of the last one.
    """
    cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "run.ipynb")
    with _server(folder) as address:
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        _choose_kernel(page)
        page.locator(".jp-Cell").first.click()
        page.keyboard.press("Shift+Enter")
        page.get_by_text("failed]").wait_for()  # the bar counts the first one
        page.screenshot(path=target / "notebook-bar.png")
        page.get_by_text("items per second").wait_for()
        for _ in CELLS[1:]:
            page.keyboard.press("Shift+Enter")
        page.locator(".dataframe").wait_for()
        page.screenshot(path=target / "notebook.png")
        page.screenshot(path=part, clip=PART)
        page.close()


def _choose_kernel(page: Page) -> None:
    """Accept the kernel that a new notebook offers."""
    offered = page.locator(".jp-Dialog button.jp-mod-accept")
    offered.or_(page.get_by_text("| Idle")).first.wait_for()
    if offered.count():
        offered.first.click()
    page.get_by_text("| Idle").wait_for()
    page.get_by_role("button", name="No", exact=True).click()  # no news: the offer covers what is looked at


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Serve the folder to whoever has the token, on this machine; yield the notebook's address."""
    token = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [
        f"--IdentityProvider.token={token}",
        "--allow-root",
        "--ServerApp.port_retries=0",
    ]
    # settings of its own: what is answered here is not the user's answer, and is asked again the next time
    own = {
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "spaces"),
    }
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log)
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}/doc/tree/run.ipynb?token={token}"
        finally:
            server.terminate()
            server.wait(60)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
            return
        with suppress(subprocess.TimeoutExpired):
            raise SystemExit(f"JupyterLab has ended with exit status {server.wait(0.2)}")
