"""Deliveries that are signed, and sums worked out without rbim."""

import json
import time
from datetime import UTC, datetime
from hashlib import md5

from helpers.credentials import APP_ID, TOKEN
from rbim import Credentials
from rbim.callbacks.signature import Rejected, sign, verify

OLD_TOKEN = "00112233445566778899aabbccddeeff"
OLDER_TOKEN = "ffeeddccbbaa99887766554433221100"
OTHER_TOKEN = "8e0c4b9de2a14f5c8b3e6d1a90c2f4e9"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BODY = '{"eventType":"1","convType":"PERSON","msgType":"TEXT","body":"你好 🎉"}'.encode()


def credentials(app_id=APP_ID, token=TOKEN):
    return Credentials(app_id=app_id, app_token=token)


MINE = credentials()


def signed(body=BODY, now=NOW, by=MINE):
    return sign(body, credentials=by, now=now)


def check(headers, body=BODY, *, now=NOW, by=MINE, **options):
    return verify(headers, body, credentials=by, now=now, **options)


def own_sum(digest, moment, app_id=APP_ID, token=TOKEN):
    """Return the CheckSum of these texts, worked out here."""
    return md5(f"{app_id}{token}{digest}{moment}".encode()).hexdigest().upper()


def by_hand(document):
    """Return the headers of a delivery that is sent now, by nothing but the standard library, and its body."""
    body = json.dumps(document, ensure_ascii=False).encode()
    digest, moment = md5(body).hexdigest().upper(), str(int(time.time() * 1000))
    headers = {"MD5": digest, "CurTime": moment, "CheckSum": own_sum(digest, moment)}
    return headers | {"Content-Type": "application/json"}, body


def assert_refused(result, reason):
    assert isinstance(result, Rejected), result
    assert result.reason is reason, result


ARABIC = {ord(digit): 0x660 + int(digit) for digit in "0123456789"}
