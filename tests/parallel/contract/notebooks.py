"""Cells that run in a real Jupyter kernel."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.parallel.contract.helpers import GUARD, clean_environment


@contextmanager
def notebook(folder):
    """Start a kernel in a folder; yield a function that runs a cell and returns what it printed.

    The function's `until` is a text to wait for; to `shown` it adds what a cell displays, by MIME type.
    """
    with tempfile.TemporaryDirectory() as sockets:  # a TCP port may be taken before the kernel has it
        yield from _run_in(folder, Path(sockets, "kernel"))


def _run_in(folder, sockets):
    # takes a fifth of a second in each process that collects
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(sockets))
    manager.start_kernel(cwd=str(folder), env=clean_environment())
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=GUARD)

        def run(cell, until="", shown=None):
            printed = []

            def hook(message):
                if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                    printed.append(message["content"]["text"])
                if message["msg_type"] == "display_data" and shown is not None:
                    shown.append(message["content"]["data"])

            reply = client.execute_interactive(cell, timeout=GUARD, output_hook=hook)["content"]
            assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
            while until not in "".join(printed):  # what comes to the kernel's files is shown a moment later
                hook(client.get_iopub_msg(timeout=GUARD))
            return "".join(printed)

        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.destroy()
