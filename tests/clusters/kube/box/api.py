"""Requests to the API server of the lab, without any client library."""

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

STATE = Path(os.environ["KUBE_LAB"])
TOKEN = (STATE / "tokens.csv").read_text().partition(",")[0]
SERVER = "https://127.0.0.1:6443"
CONTEXT = ssl.create_default_context(cafile=STATE / "certs" / "ca.crt")
TRIES = 10  # for a request that gets no answer
PATCH = "application/strategic-merge-patch+json"


def api(verb, path, body=None, kind="application/json", timeout=20):
    """Send a request and return the open answer."""
    request = urllib.request.Request(
        SERVER + path,
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
    )
    return urllib.request.urlopen(request, context=CONTEXT, timeout=timeout)


def get(path):
    """Return what is at a path."""
    with api("GET", path) as answer:
        return json.load(answer)


def told(verb, path, body=None, kind="application/json"):
    """Send a request that may be out of date: what it is about may be gone, or there already.

    On a busy machine the server may take its time: it is asked again, since whoever waits for this has only this.
    """
    for _ in range(TRIES):
        try:
            api(verb, path, body, kind).close()
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                print(verb, path, error, error.read()[:300], flush=True)
        except OSError as error:
            print(verb, path, repr(error), flush=True)
            continue
        return
