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
    from collections.abc import AsyncIterable, Mapping
    from importlib.resources.abc import Traversable

    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["SECURITY_HEADERS", "Page", "prefers_html", "send_answer"]

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
    ".html": "text/html;charset=utf-8",
    ".js": "text/javascript;charset=utf-8",
    ".css": "text/css;charset=utf-8",
    ".svg": "image/svg+xml",
}
SHARED = "parts"
INDEX = "index.html"
READING = ("GET", "HEAD")
NOT_MODIFIED = 304


@frozen
class _Asset:
    content: bytes
    kind: str
    etag: str


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
        """Answer one HTTP request. A browser asks for a file each time, so that a page never mixes two versions."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        rest = path.removeprefix(self.prefix)
        name = rest.removeprefix("static/") if rest else f"{self._name}/{INDEX}"
        file = _files(self._name).get(name) if self.serves(path) and not (rest and name.endswith(INDEX)) else None
        headers, body = {"content-type": "text/plain;charset=utf-8"}, b"the page has no such file\n"
        if self.serves(path) and scope["method"] not in READING:
            status, headers["allow"], body = 405, "GET, HEAD", b"the page is only read\n"
        elif file is None:
            status = 404
        else:
            known = b", ".join(value for name, value in scope["headers"] if name == b"if-none-match").decode("latin-1")
            status = NOT_MODIFIED if file.etag in known or known == "*" else 200
            headers, body = {"etag": file.etag, "cache-control": "no-cache", "content-type": file.kind}, file.content
            if not rest:
                headers["vary"] = "accept"
        await send_answer(send, status, headers, body, head=scope["method"] == "HEAD")


async def send_answer(
    send: Send, status: int, headers: Mapping[str, str], body: bytes | AsyncIterable[bytes], *, head: bool = False
) -> None:
    """Send an answer of a page. ``body`` may be parts that are sent as they come; to ``head`` it is not sent."""
    fields = {**SECURITY_HEADERS, **headers}
    if isinstance(body, bytes) and status != NOT_MODIFIED:
        fields["content-length"] = str(len(body))
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    if not isinstance(body, bytes):
        async for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": b"" if head or status == NOT_MODIFIED else body})


@lru_cache
def _files(name: str) -> dict[str, _Asset]:
    """Return the files of a page and those that all pages share, by ``FOLDER/FILE``. They are read once per process."""
    static = files("rbim.page").joinpath("static")
    return {f"{folder}/{each.name}": _read(each) for folder in (SHARED, name) for each in static.joinpath(folder).iterdir()}


def _read(file: Traversable) -> _Asset:
    content = file.read_bytes()
    kind = TYPES[f".{file.name.rpartition('.')[2]}"]
    return _Asset(content, kind, f'"{sha256(content).hexdigest()[:32]}"')


def prefers_html(scope: Scope) -> bool:
    """Return whether a request comes from a browser that shows a page: HTML is the first type that it accepts."""
    accepted: bytes = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return accepted.partition(b",")[0].partition(b";")[0].strip().lower() == b"text/html"
