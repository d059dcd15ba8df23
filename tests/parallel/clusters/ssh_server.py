"""An SSH server of this machine, for tests: on three loopback addresses, for one key, running commands as this user.

It is a process of its own, `python -m tests.parallel.clusters.ssh_server FOLDER`, that ends with its standard input.
"""

import asyncio
import getpass
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@contextmanager
def ssh_server(folder: Path) -> Iterator[dict[str, Any]]:
    """Serve on all `HOSTS` for a block of code; yield the `connect_options` that are let in."""
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield {
            "port": int(server.stdout.readline()),
            "username": getpass.getuser(),
            "client_keys": [str(folder / "key")],
            "known_hosts": str(folder / "known_hosts"),
            "config": None,
        }
        server.communicate()


async def _run(process: Any) -> None:
    """Run the command that a client asks for, in a process group that ends with the session."""
    child = await asyncio.create_subprocess_shell(
        process.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        code = await child.wait()
        # before Python 3.11 they may still hold what it printed
        for stream in (process.stdout, process.stderr):
            await stream.drain()
        process.exit(code)
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)


async def _serve(folder: Path) -> None:
    """Make the keys, listen, print the port, and serve until standard input ends."""
    import asyncssh  # takes half a second, which only the server's process needs

    key, host_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    (folder / "key").touch(0o600)
    key.write_private_key(str(folder / "key"))
    with socket.socket() as free:
        free.bind((HOSTS[0], 0))
        port = free.getsockname()[1]
    trusted = host_key.export_public_key().decode()
    (folder / "known_hosts").write_text("".join(f"[{host}]:{port} {trusted}" for host in HOSTS))
    for host in HOSTS:
        await asyncssh.listen(
            host,
            port,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(key.export_public_key().decode()),
            process_factory=_run,
            encoding=None,
        )
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
