"""The signature of a delivery: its headers and its body, in the forms of every framework."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rbim import Credentials
from rbim.callbacks.diagnosis import explain
from rbim.callbacks.signature import Keys, Policy, Rejected, Verified, sign, verify
from tests.fuzz import by_hand
from tests.fuzz.broken import require
from tests.fuzz.headers import parsed

WHAT = "`verify` and `explain`: headers as pairs of bytes, pairs of strings and a mapping, any body"
ORACLE = "each documented reason by hand with hashlib: accepted only without any, refused only for one that holds"
INSTRUMENT = ["rbim"]
MOST = 500
WORDS = [
    *(
        b"MD5: $MD5\n",
        b"CheckSum: $SUM\n",
        b"checksum: $OLD\n",
        b"CurTime: $NOW\n",
        b"Content-Encoding: gzip\n",
        b"identity",
    ),
    *(b"$MD5", b"$SUM", b"$OLD", b"$NOW", b"\n\n", b" ", b"md5", b"MD5:", b"1767323045", b"1767323045678", b"\xef\xbc\x91"),
]
BACK, AHEAD = 300, 60  # seconds
LIMIT = 200  # bytes of a body
NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=by_hand.MOMENT)
TOKENS = [Credentials(app_id=by_hand.APP_ID, app_token=token) for token in (by_hand.TOKEN, by_hand.OLD_TOKEN)]
KEYS = Keys(*TOKENS)
POLICY = Policy(back=BACK, ahead=AHEAD, max_body=LIMIT)
GENUINE = b"MD5: $MD5\nCurTime: $NOW\nCheckSum: $SUM\n"


def seeds() -> list[bytes]:
    """Return deliveries of each kind; the first two bytes move the clock."""
    swapped = by_hand.filled(GENUINE, b"{}").swapcase()
    return [
        b"\x80\x00" + GENUINE + b"\n{}",
        b"\x80\x00" + swapped + b"\n{}",
        b"\x80\x00" + GENUINE.replace(b"$SUM", b"$OLD") + b"Content-Encoding: identity\n\n" + b'{"a":1}',
        b"\x80\x00" + GENUINE + b"md5: $MD5\n\n{}",
        b"\x80\x00" + GENUINE + b"content-encoding: gzip\n\n{}",
        b"\x80\x00" + GENUINE.replace(b"$NOW", b"1767323045") + b"\n{}",
        b"\x80\x00MD5: $MD5\nCurTime: $NOW\n\n{}",
        b"\x00\x00" + GENUINE + b"\n{}",
        b"\xff\x00" + GENUINE + b"\n{}",
        b"\x80\x00" + GENUINE + b"\n" + b"x" * 201,
        b"\x80\x00" + by_hand.filled(GENUINE, b"{}") + b"\n{ }",
    ]


def check(data: bytes) -> None:
    """Verify one delivery in every form."""
    if len(data) < 2:
        return
    shift = ((data[0] << 8 | data[1]) - 0x8000) * 20  # milliseconds, up to eleven minutes
    headers, body = parsed(data[2:])
    now = NOW + timedelta(milliseconds=shift)
    wrong = by_hand.defects(headers, body, most=LIMIT, now=by_hand.MOMENT + shift, back=BACK, ahead=AHEAD)
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    forms: list[object] = [headers, [(name.lower(), value) for name, value in headers]]
    if all(name.isascii() and value.isascii() for name, value in headers):
        forms.append(texts)
        if len({name.lower() for name, _ in texts}) == len(texts):
            forms.append(dict(texts))
    results = [verify(form, body, credentials=KEYS, now=now, policy=POLICY) for form in forms]  # type: ignore[arg-type]
    for result in results:
        require(result == results[0], "the form of the headers changes the result", results)
    result = results[0]
    if isinstance(result, Rejected):
        require(str(result.reason) in wrong, f"refused without reason: {result.reason}", result, wrong)
        secrets = (by_hand.TOKEN, by_hand.OLD_TOKEN)
        require(not any(each in f"{result!r}{result.error}" for each in secrets), "a refusal shows a token", result)
    else:
        require(not wrong, f"accepted in spite of {', '.join(sorted(wrong))}", result, headers, body)
        _check_accepted(result, headers, body, shift)
    found = explain(headers, body, credentials=TOKENS, now=now, policy=POLICY)
    reason = None if isinstance(result, Verified) else result.reason
    require(found.reason is reason, "explain does not give the reason of verify", result, found)
    require(by_hand.TOKEN not in found.text and found.text.isprintable(), "an explanation shows too much", found)


def _check_accepted(result: Verified, headers: list[tuple[bytes, bytes]], body: bytes, shift: int) -> None:
    values = {name.lower(): value for name, value in headers}
    current = by_hand.headers_for(body, int(values[b"curtime"]), by_hand.TOKEN)
    mine = current["CheckSum"].lower() == values[b"checksum"].decode().lower()
    if values[b"md5"].decode() == current["MD5"]:
        require(mine == (result.key.index == 0), "another token is named", result)
    require(result.cur_time == int(values[b"curtime"]), "another time is given", result)
    age = (by_hand.MOMENT + shift - result.cur_time) / 1000
    require(abs(result.age - age) < 0.001, "another age is given", result, age)
    signed = sign(
        body, credentials=TOKENS[0], now=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=result.cur_time)
    )
    require(signed == current, "sign makes other headers", signed, current)
