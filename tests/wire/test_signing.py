"""The application scheme, whose sums tests/description writes down, and credentials that do not show their token."""

import base64
import hashlib
import json
import pickle
import traceback
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import attrs
import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.fixed_clock import FixedClock
from helpers.paths import PACKAGE
from helpers.stubs import Stub, client_over
from helpers.tables import each_row
from rbim import CHINA, AppSigner, AsyncClient, Credentials, InvalidRequest, Request, Signer

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=CHINA)
REQUEST = Request(origin="https://host", path="/x", headers={"Accept": "application/json"}, body=b"{}", repeatable=True)


def credentials():
    return Credentials(app_id=APP_ID, app_token=TOKEN)


def signer(moment=MOMENT, **options):
    return AppSigner(credentials(), clock=FixedClock(moment), **options)


def stamp_of(request):
    app_id, stamp = base64.b64decode(request.headers["Authorization"], validate=True).decode().split(":")
    assert app_id == APP_ID
    return stamp


# --------------------------------------------------------------------------------------- the scheme


def test_signing_changes_nothing_else_and_not_the_request_itself():
    signed = signer().sign(REQUEST)
    assert attrs.evolve(signed, query={}, headers=REQUEST.headers) == REQUEST
    assert "Authorization" not in REQUEST.headers
    assert signed.target == f"/x?sig={signed.query['sig']}"


@each_row(
    "moment, zone, stamp",
    [
        (datetime(2026, 1, 1, 19, 4, 5, tzinfo=UTC), CHINA, "20260102030405"),
        (datetime(2026, 1, 1, 19, 4, 5, 999_999, tzinfo=UTC), UTC, "20260101190405"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=CHINA), timezone(timedelta(hours=-5)), "20260101140405"),
        (datetime(2026, 7, 1, 12, 0, tzinfo=UTC), ZoneInfo("Europe/Berlin"), "20260701140000"),
    ],
)
def test_the_timestamp_is_in_the_zone_that_is_configured(moment, zone, stamp):
    assert stamp_of(signer(moment, zone=zone).sign(REQUEST)) == stamp


def test_each_second_has_a_signature_of_its_own_also_when_the_clock_is_set_back():
    signing = signer()
    seen = []
    for seconds in (0, 0.9, 1, 86_400, 0):
        signing.clock.moment = MOMENT + timedelta(seconds=seconds)
        signed = signing.sign(REQUEST)
        seen.append((stamp_of(signed), signed.query["sig"]))
    assert [stamp for stamp, _ in seen] == [
        "20260102030405",
        "20260102030405",
        "20260102030406",
        "20260103030405",
        "20260102030405",
    ]
    assert len(set(seen)) == 3


def test_a_python_that_has_no_md5_for_security_signs_too(monkeypatch):
    """As builds for FIPS 140: there MD5 is only for what needs no security."""
    real = hashlib.md5

    def strict(data=b"", *, usedforsecurity=True):
        assert not usedforsecurity, "disabled for FIPS"
        return real(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", strict)
    assert signer().sign(REQUEST).query["sig"] == "E35447613E0ED7E209475760F07AAEE5"


def test_the_requests_of_a_second_share_what_is_made_for_them():
    """A signature costs more than all else that is done for a request's head."""
    signing = signer()
    first, second = signing.sign(REQUEST), signing.sign(REQUEST)
    assert first.query is second.query
    assert first.headers is second.headers
    signing.clock.moment += timedelta(seconds=1)
    third = signing.sign(REQUEST)
    assert third.query["sig"] != first.query["sig"]
    assert third.headers["Authorization"] != first.headers["Authorization"]


# ----------------------------------------------------------------------------------- the credentials


@each_row("name", ["app_id", "app_token"])
@each_row("wrong", ["", " ", "a b", "a\n", " a", "a\u00a0", "令牌", "a\u200b", "\uff41", None, b"a", 5])
def test_an_identifier_or_token_that_cannot_be_one_is_refused_and_not_repeated(name, wrong):
    with pytest.raises(InvalidRequest, match=f"^{name}: ASCII text without white space is needed$") as caught:
        Credentials(**{"app_id": APP_ID, "app_token": TOKEN, name: wrong})
    assert caught.value.field == name


def shown():
    """Yield every way in which somebody may look at credentials without meaning to see the token."""
    secret = credentials()
    yield "repr", lambda: repr(secret)
    yield "str", lambda: str(secret)
    yield "format", lambda: f"{secret} {secret!r} {secret.app_token} {secret.app_token!r:>40}"
    yield "percent", lambda: "%s %r %s" % (secret, secret, secret.app_token)  # noqa: UP031  # one of the ways
    yield "in a container", lambda: repr([secret, {"a": secret.app_token}])
    yield "asdict", lambda: repr(attrs.asdict(secret))
    yield "astuple", lambda: repr(attrs.astuple(secret))
    yield "json", lambda: json.dumps(attrs.asdict(secret), default=str)
    yield "json by repr", lambda: json.dumps(secret, default=repr)
    yield "dir", lambda: repr({name: repr(getattr(secret.app_token, name, "")) for name in dir(secret) if name != "_text"})
    yield "a signer", lambda: repr(AppSigner(secret))
    yield "a signer's inside", lambda: repr(vars(AppSigner(secret)))
    yield "a client", lambda: repr(AsyncClient(base_url="https://host", credentials=secret, transport=Stub()))
    yield "a signed request", lambda: repr(signer().sign(REQUEST))


@each_row("name, look", shown())
def test_no_look_at_credentials_shows_the_token(name, look):
    text = look()
    assert text, name
    assert TOKEN not in text


@each_row("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@each_row("value", [credentials(), credentials().app_token])
def test_the_token_is_not_pickled_and_the_refusal_says_what_to_do(value, protocol):
    with pytest.raises(TypeError, match="read it again"):
        pickle.dumps(value, protocol)


BAD = TOKEN[:-1] + " "  # a real token, pasted with white space


def test_a_traceback_with_its_locals_shows_no_token():
    """Error trackers record the locals of every frame; those of rbim's own must not hold it."""

    def refuse():
        try:
            Credentials(app_id=APP_ID, app_token="".join(BAD))
        except InvalidRequest as error:
            return traceback.TracebackException.from_exception(error, capture_locals=True)

    frames = refuse().stack
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    assert inside
    assert TOKEN[:-1] not in "".join(str(frame.locals) for frame in inside)


# ------------------------------------------------------------------------------- a scheme of one's own


class HeaderSigner:
    """Some gateway's own scheme."""

    app_id = "gateway-app"

    def __init__(self):
        self.signed = 0

    def sign(self, request, /):
        self.signed += 1
        return attrs.evolve(request, headers={**request.headers, "X-Key": f"k{self.signed}"})


async def test_a_signer_of_ones_own_takes_the_place_of_the_scheme():
    own: Signer = HeaderSigner()
    stub = Stub()
    async with client_over(stub, signer=own) as client:
        await client.groups.delete(group_id="g1")
        await client.groups.delete(group_id="g2")
    assert [request.headers["X-Key"] for request in stub.requests] == ["k1", "k2"]
    assert all(not request.query and "Authorization" not in request.headers for request in stub.requests)
    assert stub.requests[0].path == "/2013-12-26/Application/gateway-app/IM/Group/DeleteGroup"
