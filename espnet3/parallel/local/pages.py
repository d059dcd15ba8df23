"""The HTTP pages of a local cluster, the dashboard among them, for holders of the secret that is part of its link.

Every account of a machine can connect to its loopback ports. A browser shows the secret once, as part of the link that
the run prints, and is given a cookie; requests with neither get a refusal, whatever they ask for.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from distributed.deploy.spec import SpecCluster
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest, url_concat
from tornado.routing import Router
from tornado.web import Application, RequestHandler

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat.clusters import guarded, put_before_pages

_FIELD = "token"
_REFUSAL = b"These pages are open to those who have the link that the run has printed.\n"


def new_secret(config: ParallelConfig) -> str | None:
    """Return a secret for the pages of one cluster; None leaves them open."""
    return secrets.token_urlsafe(24) if config.security != "off" else None


def behind_secret(server_class: Any, secret: str | None) -> Any:
    """Return a class of schedulers or workers whose pages answer only requests with the secret; None: as it is."""
    if secret is None:
        return server_class
    return guarded(server_class, lambda server: put_before_pages(server, lambda pages: _Door(pages, secret)))


class PrivatePages(SpecCluster):
    """Base of a cluster whose scheduler runs in this process: it comes after those that specify the scheduler."""

    pages: str | None = None  # the secret that the pages ask for; None leaves them open

    def __init__(self, *, scheduler: dict[str, Any], **options: Any) -> None:
        init: Any = super().__init__  # has no types
        init(scheduler={**scheduler, "cls": behind_secret(scheduler["cls"], self.pages)}, **options)

    @property
    def dashboard_link(self) -> str:
        """The address of the dashboard, with the secret."""
        link: str = super().dashboard_link
        if self.pages is None or not link:
            return link
        return url_concat(link, {_FIELD: self.pages})


class _Door(Router):
    def __init__(self, pages: Any, secret: str) -> None:
        self.pages = pages
        self.secret = secret
        # cookies know no ports: two clusters of one machine would overwrite each other's
        self.cookie = f"espnet3-{hashlib.sha256(secret.encode()).hexdigest()[:12]}"
        self.others = Application([(".*", _Answer, {"door": self})], log_function=lambda handler: None)

    def find_handler(self, request: HTTPServerRequest, **_: Any) -> HTTPMessageDelegate | None:
        cookie = request.cookies.get(self.cookie)
        known = cookie is not None and self.is_secret(cookie.value)
        handler: HTTPMessageDelegate | None = (self.pages if known else self.others).find_handler(request)
        return handler

    def is_secret(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self.secret.encode())


class _Answer(RequestHandler):
    def initialize(self, door: _Door) -> None:
        self.door = door

    def prepare(self) -> None:
        door, parts = self.door, urlsplit(self.request.uri or "/")
        fields = parse_qsl(parts.query)
        self.set_header("Cache-Control", "no-store")
        if not any(name == _FIELD and door.is_secret(value) for name, value in fields):
            self.set_status(403)
            self.set_header("Content-Type", "text/plain")
            self.finish(_REFUSAL)
            return
        # to the same page without the secret, which would stay in the browser's history and bookmarks
        query = urlencode([(name, value) for name, value in fields if name != _FIELD])
        path = "/" + parts.path.lstrip("/")  # two slashes would begin the name of a host
        self.set_cookie(door.cookie, door.secret, httponly=True, samesite="Strict")
        self.redirect(urlunsplit(("", "", path, query, "")), status=303)
