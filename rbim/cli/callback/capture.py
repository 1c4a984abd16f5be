"""``rbim callback explain``: read a captured delivery from a file, and print why it is not accepted."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.text import Text

from rbim._support import json
from rbim._support.text import printable
from rbim.callbacks.diagnosis import explain
from rbim.callbacks.signature import Policy, Reason
from rbim.cli.context import callback_credentials, configuration
from rbim.cli.exit_codes import Exit
from rbim.errors import InvalidRequest

__all__ = ["capture_of", "explain_capture"]

Pairs = list[tuple[bytes, bytes]]

STALE_HINT = "If it was captured a while ago, this is the only problem: give the time at which it came with --at."
EXPECTED = "expected header lines, an empty line and the body"
REQUEST_LINE = re.compile(rb"[A-Za-z]+ \S+( HTTP/[0-9.]+)?\s*")
EMPTY_LINE = re.compile(rb"\r?\n\r?\n")
FOLD = re.compile(rb"\r?\n[ \t]+")  # a line that begins with a blank continues the one before
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)


def explain_capture(file: str, at: datetime | None, *, as_json: bool = False) -> Exit:
    """Print why a captured delivery is not accepted. Raises InvalidRequest if it cannot be read."""
    config = configuration()
    credentials, policy = callback_credentials(config), Policy.of(config.dialect)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    try:
        headers, body = capture_of(data)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error.message}") from None
    from rbim.cli.json_output import show_json
    from rbim.cli.output import console

    finding = explain(headers, body, credentials=credentials, now=at or datetime.now(UTC), policy=policy)
    if as_json:
        show_json({"reason": finding.reason, "text": finding.text})
    else:
        reason = "" if finding.reason is None else f"{finding.reason}: "
        console().print(Text(printable(f"{reason}{finding.text}")))
        if at is None and finding.reason is Reason.STALE:
            console().print(Text(STALE_HINT))
    return Exit.DONE if finding.reason is None else Exit.REFUSED


def capture_of(data: bytes) -> tuple[Pairs, bytes]:
    """Return headers and body of a captured HTTP request or JSON object. Raises InvalidRequest."""
    return _from_json(data) if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else _from_http(data)


def _from_http(data: bytes) -> tuple[Pairs, bytes]:
    head, body = data.lstrip(b"\r\n"), b""
    end = EMPTY_LINE.search(head)
    if end is not None:
        head, body = head[: end.start()], head[end.end() :]
    lines = FOLD.sub(b" ", head).splitlines()
    if lines and REQUEST_LINE.fullmatch(lines[0]):
        del lines[0]
    pairs: Pairs = []
    for line in lines:
        header = HEADER.fullmatch(line)
        if header is None:
            # the message leaves the line out: it may contain anything
            raise InvalidRequest(f"line {len(pairs) + 1} of the headers has no name and ':'; {EXPECTED}")
        pairs.append((header[1], header[2].strip(b" \t")))
    if not pairs:
        raise InvalidRequest(f"there are no headers; {EXPECTED}")
    return pairs, body


def _from_json(data: bytes) -> tuple[Pairs, bytes]:
    try:
        document = cast("dict[str, Any]", json.loads(data))
    except json.NotJson as error:
        raise InvalidRequest(str(error)) from None
    try:
        headers = document["headers"]
        listed = cast("Any", headers.items() if isinstance(headers, dict) else headers)
        several = [(name, cast("Any", value) if isinstance(value, list) else [value]) for name, value in listed]
        pairs = [(_bytes(name), _bytes(each)) for name, values in several for each in values]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidRequest('"headers" must be an object or a list of pairs, with texts as values') from None
    body, encoded = document.get("body"), document.get("body_base64")
    if encoded is None and document.get("isBase64Encoded") is True:  # as API gateways write it
        encoded = body
    try:
        return pairs, _bytes(body) if encoded is None else b64decode(_bytes(encoded), validate=True)
    except (AttributeError, ValueError):
        raise InvalidRequest('the body must be a text in "body", or Base64 in "body_base64"') from None


def _bytes(text: Any) -> bytes:  # JSON
    encoded: bytes = text.encode("utf-8", "surrogatepass")
    return encoded
