"""What a cluster listens on, what another account may try there, and the page's table of both."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

PAGE = Path(__file__).resolve().parents[3] / "docs/security.md"
_ACCEPTS = 0x10000  # the flag of a unix socket that listens, in /proc/net/unix


class Listener(NamedTuple):
    """A socket that waits for connections: (host, port) or a path."""

    address: Any

    @property
    def is_path(self) -> bool:
        return isinstance(self.address, str)


def listeners_of(processes: Iterator[psutil.Process]) -> set[Listener]:
    """Return what processes listen on; those that end meanwhile, or are not ours, are left out."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {row[7] for row in rows if len(row) > 7 and int(row[3], 16) & _ACCEPTS}
    found = set()
    for process in processes:
        try:
            opened = process.net_connections("all")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for one in opened:
            if isinstance(one.laddr, str) and one.laddr in paths:
                found.add(Listener(one.laddr))
            elif one.status == psutil.CONN_LISTEN:
                found.add(Listener((one.laddr.ip, one.laddr.port)))
    return found


def named(client: Any) -> dict[int, str]:
    """Return what the cluster itself says of its ports."""
    info = client.scheduler_info(n_workers=-1)
    names = {
        port_of(client.scheduler.address): "scheduler",
        info["services"]["dashboard"]: "scheduler's pages",
    }
    for address, worker in info["workers"].items():
        names |= {port_of(address): "worker", worker["services"]["dashboard"]: "worker's pages"}
        if worker["nanny"]:
            names[port_of(worker["nanny"])] = "nanny"
    return names


def port_of(address: str) -> int:
    """Return the port of an address of Dask's; 0 where it has none."""
    found = re.search(r":(\d+)$", address)
    return int(found[1]) if found else 0


def tries_at(listener: Listener) -> dict[str, tuple[str, str]]:
    """Return what another account tries at a listener: by a name, how and at which address (see stranger.py)."""
    if listener.is_path:
        return {"unix": ("unix", listener.address)}
    host, port = listener.address
    return {
        **{f"dask {scheme}": ("dask", f"{scheme}://{host}:{port}") for scheme in ("tcp", "tls")},
        **{
            f"page {scheme}": ("page", f"{scheme}://{host}:{port}/info/main/workers.html")
            for scheme in ("http", "https")
        },
    }


def verdict(listener: Listener, said: dict[str, str], is_other: bool = True) -> str:
    """Return what a listener answers to another account, in the words of the page, by what came of each try."""
    if listener.is_path:
        folder = os.stat(os.path.dirname(listener.address))
        assert folder.st_mode & 0o777 == 0o700 and folder.st_uid == os.getuid()
        assert not is_other or said == {"unix": "refused: PermissionError"}
        return "cannot be reached"
    assert listener.address[0].startswith("127.")
    assert not [each for each in said.values() if each.startswith("let in")], said
    return "refuses the page" if said["page http"] == "403" else "refuses the connection"


def on_the_page() -> set[tuple[str, str, str]]:
    """Return the rows of the page's table of listeners: env, who, and what a stranger gets."""
    rows = set()
    for line in PAGE.read_text(encoding="utf-8").split("## Listeners")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            envs, who, _, answer = cells
            rows |= {(env.strip("` "), who, answer) for env in envs.split(",")}
    return rows
