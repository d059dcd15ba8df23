"""Another account of this machine, for tests: it tries to get in where it is told to, and answers with what happened.

It loads what it needs and drops to the uid it is given; without root it stays who it is, and holds nothing of a run.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

NOBODY = 65534
PATIENCE = 3.0  # seconds for an answer


class Stranger:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.is_other = self("uid", "") != os.getuid()

    def __call__(self, how: str, address: str) -> Any:
        """Return what came of one try, a word or two that begin with "let in" if it did."""
        return self.at_once([(how, address)])[0]

    def at_once(self, tries: list[tuple[str, str]]) -> list[Any]:
        """Return what came of each try; all are made at the same time, as most wait for an answer in vain."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(tries) + "\n")
        self._process.stdin.flush()
        said: list[Any] = json.loads(self._process.stdout.readline())
        return said


@contextmanager
def stranger() -> Iterator[Stranger]:
    """Start the other process for a block of code."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Stranger(process)
        process.communicate()


async def _dask(address: str) -> str:
    """Have the other end run code, as a client of Dask would."""
    from distributed import Security
    from distributed.core import rpc

    arguments = (Security.temporary() if address.startswith("tls") else Security()).get_connection_args(
        "client"
    )
    async with rpc(address, connection_args=arguments, timeout=PATIENCE) as there:
        return f"let in: {sorted(await asyncio.wait_for(there.identity(), PATIENCE))[:3]}"


def _page(address: str) -> str:
    """Ask for a page of HTTP, and return what is no refusal."""
    import ssl
    import urllib.error
    import urllib.request

    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE, context=context) as answer:
            return f"let in: {answer.status}"
    except urllib.error.HTTPError as error:
        return f"{error.code}" if error.code == 403 else f"let in: {error.code}"


def _unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        return "let in: connected"


def _try(how: str, address: str) -> Any:
    try:
        if how == "dask":
            return asyncio.run(_dask(address))
        return {"page": _page, "unix": _unix, "uid": lambda _: os.getuid()}[how](address)
    except Exception as error:  # whatever it is, it is the answer
        return f"refused: {type(error).__name__}"


def main() -> None:
    """Drop what only the owner may have, then answer line by line."""
    import logging

    import cryptography.x509  # noqa: F401  the other account may not be able to read our packages
    import distributed.comm.tcp  # noqa: F401

    asyncio.run(_dask_once())
    logging.disable()
    if os.getuid() == 0:
        os.chdir("/")
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with ThreadPoolExecutor(64) as threads:
        for line in sys.stdin:
            print(json.dumps(list(threads.map(_try, *zip(*json.loads(line), strict=True)))), flush=True)


async def _dask_once() -> None:
    """Load all that a connection loads, by making one."""
    import urllib.request  # noqa: F401

    from distributed import Security
    from distributed.comm import connect, listen

    security = Security.temporary()

    async def answer(comm: Any) -> None:
        await comm.close()

    async with listen("tls://127.0.0.1:0", answer, **security.get_listen_args("scheduler")) as listener:
        there = await connect(listener.contact_address, **security.get_connection_args("client"))
        await there.close()


if __name__ == "__main__":
    main()
