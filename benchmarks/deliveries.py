"""Signed deliveries for the benchmarks of the receiver, and the receiver itself."""

from __future__ import annotations

import hashlib
import json
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from rbim.callbacks import Receiver
from rbim.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["APP_ID", "TOKEN", "body_of", "message", "messages", "receiver"]

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
FASTEST = 25_000  # prepared requests per second of a turn


def messages(numbers: Iterator[int], seconds: float, connections: int, *, groups: int = 500) -> list[bytes]:
    """Return signed requests for a turn, each with another message: prepared, so that the client has little to do."""
    return [message(number, groups=groups) for number in islice(numbers, int(FASTEST * seconds) + connections)]


def body_of(number: int, *, groups: int = 500) -> bytes:
    """Return the body of a delivery, to one of so many groups."""
    document = {
        "eventType": "1",
        "convType": "TEAM",
        "to": f"g800000{number % groups:06d}",
        "fromAccount": f"{APP_ID}#{10_000 + number % 997}",
        "fromClientType": "Android",
        "fromDeviceId": "5f0e9c1d7a",
        "fromNick": "王小明",
        "msgTimestamp": str(1_767_323_045_000 + number),
        "msgType": "TEXT",
        "body": "明天上午十点开会, 请准时参加",
        "msgId": f"m{number:016d}",
        "resendFlag": "0",
        "tMembers": [f"{APP_ID}#{each}" for each in range(1001, 1006)],
        "ext": '{"v":1}',
    }
    return json.dumps(document, ensure_ascii=False).encode()


def message(number: int, *, groups: int = 500) -> bytes:
    """Return one signed request, to one of so many groups."""
    body = body_of(number, groups=groups)
    digest = hashlib.md5(body).hexdigest().upper()
    moment = str(int(time.time() * 1000))
    checksum = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest().upper()
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nMD5: {digest}\r\n"
        f"CurTime: {moment}\r\nCheckSum: {checksum}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def receiver(sink: Any) -> Any:  # a sink; an ASGI application
    """Return the receiver under test."""
    return Receiver(credentials=Credentials(app_id=APP_ID, app_token=TOKEN), sink=sink).asgi
