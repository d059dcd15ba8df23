"""What the clusters of this package listen on, and which address is printed."""

import urllib.error
import urllib.request
from importlib.util import find_spec

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.clusters import client as client_module
from tests.habits import rows
from tests.parallel.contract import work

OPTIONS = [{}, {"processes": False}]
IDS = ["processes", "threads"]


@pytest.mark.parametrize("options", rows(OPTIONS, OPTIONS[:1]), ids=IDS)
def test_local_workers_listen_on_loopback_alone(options):
    """No process of `env: local` listens beyond loopback, whatever its workers are."""
    mine = {c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    with get_client({"env": "local", "n_workers": 2, "options": options}):
        parallel_map(abs, range(10))
        here = psutil.Process()
        listening = {
            c.laddr
            for process in [here, *here.children(recursive=True)]
            for c in process.net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        }
    assert {address.ip for address in listening - mine} == {"127.0.0.1"}


WITH_COOKIES = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


@pytest.fixture
def bokeh(monkeypatch):
    """Pretend that bokeh is installed: the scheduler's HTTP server is there in any case."""
    monkeypatch.setattr(client_module, "find_spec", lambda name: name == "bokeh")


@pytest.mark.parametrize("options", rows(OPTIONS, OPTIONS[1:]), ids=IDS)
def test_the_dashboards_address_is_printed_once(options, bokeh, capsys):
    """A run that shows progress says where the dashboard is, once for a client, and a server answers there."""
    runner = work.Times(work.Provider({"factor": 3}))
    with get_client({"env": "local", "n_workers": 2, "options": options}):
        runner(range(10))
        runner(range(10))
        told, *others = capsys.readouterr().err.splitlines()
        name, address = told.split(": ", 1)
        assert name == "dashboard" and address.startswith("http://127.0.0.1:")
        assert len([line for line in others if line.startswith("Times: ")]) == 2
        assert not any("dashboard" in line for line in others)
        try:
            code = WITH_COOKIES.open(address, timeout=600).status
        except urllib.error.HTTPError as error:
            code = error.code
        assert code == (200 if find_spec("bokeh") else 404)  # it answers, and has no page without bokeh
