"""Deliveries as the targets write them: lines of headers, a blank line, the body."""

from __future__ import annotations

from . import by_hand

__all__ = ["parsed"]


def parsed(message: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body, with the words of :func:`by_hand.filled`. A header without a colon is left out."""
    head, _, body = message.partition(b"\n\n")
    pairs = [each.partition(b":") for each in by_hand.filled(head, body).split(b"\n")]
    return [(name, value.removeprefix(b" ")) for name, colon, value in pairs if colon], body
