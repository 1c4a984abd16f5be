"""A page over HTTP: an ASGI 3 application that serves its files below a prefix.

Every answer has the same headers, which keep a page to itself: nothing is loaded from elsewhere, no other page may frame or
read it, and a script that gets into it by a hostile name has no way to run. The files are those of the package, by name: no
path of a request reaches the file system.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["SECURITY_HEADERS", "Page", "prefers_html"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""The headers of each answer of a page."""

TYPES = {
    ".html": b"text/html;charset=utf-8",
    ".js": b"text/javascript;charset=utf-8",
    ".css": b"text/css;charset=utf-8",
    ".svg": b"image/svg+xml",
}
SHARED = "parts"
INDEX = "index.html"
READING = ("GET", "HEAD")

_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


@frozen
class _Asset:
    content: bytes
    kind: bytes
    etag: bytes


class Page:
    """The ASGI 3 application of one page: ``static/NAME/index.html`` at the prefix, ``static/...`` below it.

    ``name`` is the page's folder. ``prefix`` begins and ends with a slash (default: ``/``).
    """

    def __init__(self, name: str, *, prefix: str = "/") -> None:
        self.prefix = prefix
        self._name = name

    def serves(self, path: str) -> bool:
        """Return whether a path is one of the page's."""
        return path == self.prefix or path.startswith(f"{self.prefix}static/")

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        rest = path.removeprefix(self.prefix)
        if not self.serves(path):
            await _say(scope, send, 404, "the page has no such file\n")
        elif scope["method"] not in READING:
            await _say(scope, send, 405, "the page is only read\n", (b"allow", b"GET, HEAD"))
        else:
            name = f"{self._name}/{INDEX}" if not rest else rest.removeprefix("static/")
            file = _files(self._name).get(name)
            if file is None or (rest and name.endswith(INDEX)):
                await _say(scope, send, 404, "the page has no such file\n")
            else:
                await _answer(scope, send, file, negotiated=not rest)


async def _answer(scope: Scope, send: Send, file: _Asset, *, negotiated: bool) -> None:
    """Send a file, or 304 if the browser has it. A browser asks each time, so that a page never mixes two versions."""
    known = b", ".join(value for name, value in scope["headers"] if name == b"if-none-match")
    headers = [(b"etag", file.etag), (b"cache-control", b"no-cache"), *_HEADERS]
    if negotiated:
        headers.append((b"vary", b"accept"))
    if file.etag in known or known == b"*":
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    headers += [(b"content-type", file.kind), (b"content-length", b"%d" % len(file.content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else file.content})


async def _say(scope: Scope, send: Send, status: int, text: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"text/plain;charset=utf-8"), (b"content-length", b"%d" % len(text)), *more, *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else text.encode()})


@lru_cache
def _files(name: str) -> dict[str, _Asset]:
    """Return the files of a page and those that all pages share, by ``FOLDER/FILE``. They are read once per process."""
    static = files("rbim.page").joinpath("static")
    return {f"{folder}/{each.name}": _read(each) for folder in (SHARED, name) for each in static.joinpath(folder).iterdir()}


def _read(file: Traversable) -> _Asset:
    content = file.read_bytes()
    kind = TYPES[f".{file.name.rpartition('.')[2]}"]
    return _Asset(content, kind, b'"%s"' % sha256(content).hexdigest()[:32].encode())


def prefers_html(scope: Scope) -> bool:
    """Return whether a request comes from a browser that shows a page: it names HTML, and no JSON that it prefers."""
    text = ", ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
    weights = dict(map(_weighted, text.lower().split(",")))
    return weights.get("text/html", 0.0) > weights.get("application/json", 0.0)


def _weighted(accepted: str) -> tuple[str, float]:
    """Return a media type of an Accept header and its weight, in linear time: the header can be long, and anyone's."""
    kind, *parameters = accepted.split(";")
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            return kind.strip(), _weight(value.strip())
    return kind.strip(), 1.0


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
