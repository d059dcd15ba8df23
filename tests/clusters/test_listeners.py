"""Every listener of every env on real schedulers, tried by a real second account; the table is printed at the end."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.labs import LABS, STATE, Lab
from tests.clusters.second_account import ask
from tests.parallel.clusters import stranger
from tests.parallel.clusters.listening import Listener, listeners_of, named, on_the_page, tries_at, verdict

pytestmark = pytest.mark.clusters

OTHER_HOSTS = ("driver's channel", "refuses the connection")  # takes the place of the driver's socket


def python() -> Iterator[psutil.Process]:
    """Yield the Python processes of this user: the driver, workers, nannies; no daemon of a scheduler is one."""
    mine = psutil.Process().exe()
    for process in psutil.process_iter(["uids", "exe"]):
        uids = process.info["uids"]
        if uids is not None and uids.real == os.getuid() and process.info["exe"] == mine:
            yield process


def tried_by_another(tries: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Have the second account try; return what it was answered."""
    source, _, _ = Path(stranger.__file__).read_text(encoding="utf-8").partition("\nif __name__ ==")
    code = f"{source}\nprint(os.getuid())\nprint(json.dumps([_try(*each) for each in {tries!r}]))\n"
    _, said, wrong = ask(STATE / "other" / "door", code)
    assert len(said.splitlines()) == 2, (said, wrong)
    uid, answers = said.splitlines()
    assert int(uid) not in (0, os.getuid())
    return dict(zip(tries, json.loads(answers), strict=True))


def block_of(name: str, started: Callable[[str], Lab]) -> dict[str, Any]:
    """Return the `parallel` block of an env, with nannies; its scheduler is started."""
    if name == "local":
        return {"env": "local", "n_workers": 2}
    return started(name).block(2, **({} if name == "ssh" else {"nanny": True}))


@pytest.mark.parametrize("name", ["local", *LABS])
def test_no_listener_serves_the_second_account(name: str, started: Callable[[str], Lab]) -> None:
    """Scheduler, workers, nannies, their pages and the driver's own socket answer nothing; the page lists them all."""
    block = block_of(name, started)
    before = listeners_of(python())
    with get_client(block) as client:
        client.wait_for_workers(2, timeout=600)
        assert parallel_map(abs, range(20)) == list(range(20))
        names = named(client)
        driver = listeners_of(iter([psutil.Process()]))
        assert names.keys() <= {each.address[1] for each in listeners_of(python()) if not each.is_path}
        names = {each.address[1]: "driver's channel" for each in driver if not each.is_path} | names
        opened = sorted(listeners_of(python()) - before, key=str)
        said = tried_by_another([one for each in opened for one in tries_at(each).values()])
        table = {(who(each, names), where(each), answer(each, said)) for each in opened}
    with open(STATE / "tmp" / "listeners", "a", encoding="utf-8") as file:
        file.writelines(f"{name:9} {' | '.join(row)}\n" for row in sorted(table))
    rows = on_the_page()
    like = name if name in {env for env, _, _ in rows} else "pbs"  # the page says that the others are as PBS
    wanted = {row[1:] for row in rows if row[0] == like}
    if name != "local":  # its workers are at another address than the driver's
        wanted = {row for row in wanted if row[0] != "driver's socket"} | {OTHER_HOSTS}
    assert {(listener, gets) for listener, _, gets in table} == wanted


def who(listener: Listener, names: dict[int, str]) -> str:
    """Return whose a listener is."""
    return "driver's socket" if listener.is_path else names[listener.address[1]]


def where(listener: Listener) -> str:
    """Return where it listens, without what differs from run to run."""
    return "a folder of mode 0700" if listener.is_path else str(listener.address[0])


def answer(listener: Listener, said: dict[tuple[str, str], str]) -> str:
    """Return what it answered to the second account."""
    return verdict(listener, {name: said[one] for name, one in tries_at(listener).items()})
