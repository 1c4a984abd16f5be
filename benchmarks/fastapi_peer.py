"""A FastAPI + pydantic endpoint for deliveries, as a careful team would write it: the receiver's checks, but not durable.

``benchmarks/callbacks.py`` compares the receiver with it, and sets identifier and token in the environment.
"""

import hashlib
import hmac
import os
import re
from collections import deque
from datetime import UTC, datetime
from typing import Annotated

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.datastructures import Headers

APP_ID, TOKEN = os.environ["RBIM_APP_ID"], os.environ["RBIM_APP_TOKEN"]
LIMIT, BACK, AHEAD = 1024 * 1024, 300, 60

DIGEST, MOMENT = re.compile("[0-9A-Fa-f]{32}"), re.compile("[0-9]{13}")


def account(text: str) -> tuple[str | None, str]:
    """Split the text of an account into application and user."""
    app_id, sign, user = text.partition("#")
    return (app_id, user) if sign else (None, text)


Account = Annotated[tuple[str | None, str], BeforeValidator(account)]
Flag = Annotated[bool, BeforeValidator(lambda text: text == "1")]


class Event(BaseModel):
    """The event body."""

    model_config = ConfigDict(extra="allow", frozen=True)

    event_type: str = Field(alias="eventType")
    conv_type: str = Field(alias="convType")
    to: str
    from_account: Account = Field(alias="fromAccount")
    from_client_type: str | None = Field(None, alias="fromClientType")
    from_device_id: str | None = Field(None, alias="fromDeviceId")
    from_nick: str | None = Field(None, alias="fromNick")
    msg_timestamp: datetime = Field(alias="msgTimestamp")
    msg_type: str = Field(alias="msgType")
    body: str | None = None
    attach: str | None = None
    msg_id: str = Field(alias="msgId")
    resend_flag: Flag = Field(default=False, alias="resendFlag")
    custom_save_flag: Flag = Field(default=False, alias="customSaveFlag")
    custom_apns_flag: Flag = Field(default=False, alias="customApnsFlag")
    custom_apns_text: str | None = Field(None, alias="customApnsText")
    t_members: tuple[Account, ...] = Field((), alias="tMembers")
    at_user: tuple[Account, ...] = Field((), alias="atUser")
    ext: str | None = None
    link_info: str | None = Field(None, alias="linkInfo")
    antispam: bool | None = None


app = FastAPI()
taken: deque[Event] = deque()
seen: set[tuple[str, ...]] = set()


def authentic(headers: Headers, body: bytes) -> bool:
    """Return whether the delivery passes the checks of the receiver."""
    signed = [headers.getlist(name) for name in ("checksum", "md5", "curtime")]
    if len(body) > LIMIT or any(len(values) != 1 for values in signed) or "content-encoding" in headers:
        return False
    (checksum,), (digest,), (moment,) = signed
    if not DIGEST.fullmatch(checksum) or not DIGEST.fullmatch(digest) or not MOMENT.fullmatch(moment):
        return False
    of_body = hashlib.md5(body, usedforsecurity=False).hexdigest()
    of_all = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode(), usedforsecurity=False).hexdigest()
    right = hmac.compare_digest(of_body.encode(), digest.lower().encode())
    right &= hmac.compare_digest(of_all.encode(), checksum.lower().encode())
    age = datetime.now(UTC).timestamp() - int(moment) / 1000
    return right and -AHEAD <= age <= BACK


def checked(request: Request, body: bytes) -> Event | None:
    """Return the event of a delivery, or None if the delivery is refused."""
    if not authentic(request.headers, body):
        return None
    event = Event.model_validate_json(body)
    return event if event.from_account[0] in (None, APP_ID) else None


@app.post("/")
async def copied(request: Request) -> Response:
    """Answer one delivery."""
    event = checked(request, await request.body())
    if event is None:
        return Response(b"refused", 401)
    key = (event.msg_id, event.conv_type, event.msg_type, event.to)
    if key not in seen:
        seen.add(key)
        taken.append(event)
    return Response(b"", 200)
