"""What the clusters of this package listen on, and which address is printed."""

import urllib.error
import urllib.request
from importlib.util import find_spec

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.clusters import client as client_module
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO


def listening():
    """Return what this process and its children listen on."""
    here = psutil.Process()
    found = (c for p in [here, *here.children(recursive=True)] for c in p.net_connections("inet"))
    return {c.laddr for c in found if c.status == psutil.CONN_LISTEN}


@pytest.fixture
def bokeh(monkeypatch):
    """Pretend that bokeh is installed: the scheduler's HTTP server is there in any case."""
    monkeypatch.setattr(client_module, "find_spec", lambda name: name == "bokeh")


def test_local_workers_listen_on_loopback_and_the_dashboard_is_told_once(bokeh, capsys):
    """No process of `env: local` listens beyond loopback; a run says where the dashboard is, and a server answers."""
    before = listening()
    runner = work.Times(work.Provider({"factor": 3}))
    with get_client(TWO):
        parallel_map(abs, range(10))
        runner(range(10))
        runner(range(10))
        assert {address.ip for address in listening() - before} == {"127.0.0.1"}
        told, *others = capsys.readouterr().err.splitlines()
        name, address = told.split(": ", 1)
        assert name == "dashboard" and address.startswith("http://127.0.0.1:")
        assert len([line for line in others if line.startswith("Times: ")]) == 2
        assert not any("dashboard" in line for line in others)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        try:
            code = opener.open(address, timeout=600).status
        except urllib.error.HTTPError as error:
            code = error.code
        assert code == (200 if find_spec("bokeh") else 404)  # it answers, and has no page without bokeh
