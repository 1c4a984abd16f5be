"""Why a delivery is refused: each usual cause, shown by a delivery that was made by hand."""

import base64
import gzip
import itertools
import json
from datetime import UTC, datetime, timedelta
from hashlib import md5

import pytest
from hypothesis import given, strategies as st

from rbim import Credentials, InvalidRequest
from rbim.callbacks import Policy, Reason, Rejected, explain, verify

# Invented credentials.
APP, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0C4b9de2a14f5c8b3e6d1a90c2f4e8"
OTHER, OTHER_TOKEN = "bbf98f8947b5d6c80147b8a2b7c30456", "8e0c4b9de2a14f5c8b3e6d1a90c2f4e9"
MINE = Credentials(app_id=APP, app_token=TOKEN)
THEIRS = Credentials(app_id=OTHER, app_token=OTHER_TOKEN)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIME = "1767323045000"
BODY = f'{{"eventType":"1","convType":"TEAM","to":"g1","fromAccount":"{APP}#1001","msgType":"TEXT","msgId":"m1"}}'.encode()


def hexed(content):
    return md5(content if isinstance(content, bytes) else content.encode()).hexdigest().upper()


DIGEST = hexed(BODY)
SUM = hexed(APP + TOKEN + DIGEST + TIME)
LOWER = DIGEST.lower()


def headers(**changed):
    return {"CheckSum": SUM, "MD5": DIGEST, "CurTime": TIME} | changed


def signed(body, app=APP, token=TOKEN, time=TIME):
    return {"MD5": hexed(body), "CurTime": time, "CheckSum": hexed(app + token + hexed(body) + time)}


def say(told, body=BODY, *, by=MINE, now=NOW, **options):
    """Explain, and look for what must hold whatever comes."""
    finding = explain(told, body, credentials=by, now=now, **options)
    verdict = verify(told, body, credentials=by, now=now, **options)
    assert finding.reason is (verdict.reason if isinstance(verdict, Rejected) else None)
    assert finding.text.isprintable()
    assert not any(token.lower() in finding.text.lower() for token in (TOKEN, OTHER_TOKEN))
    return finding


def each_says(table):
    """Explain each row: words, reason, arguments, options; name all rows that are explained otherwise."""
    wrong = []
    for words, reason, given_, options in table:
        finding = say(*given_, **options)
        if finding.reason is not reason or words not in finding.text:
            wrong.append((words, reason, finding))
    assert not wrong


def test_what_is_accepted_and_what_would_go_into_quarantine():
    broken, foreign = b"[1", f'{{"fromAccount":"{OTHER}#1"}}'.encode()
    renewed = Credentials(app_id=APP, app_token="renewed")
    each_says([
        (f"accepted: application {APP} signed it 0.000 s ago", None, [headers()], {}),
        ("1.500 s ahead of this clock", None, [headers()], {"now": NOW - timedelta(seconds=1.5)}),
        (f"{APP} (older token 1) signed", None, [headers()], {"by": [THEIRS, renewed, MINE]}),
        ("the token rotation is not finished", None, [headers()], {"by": [renewed, MINE]}),
        ("stored in quarantine and not handled: the body cannot be read: not JSON", None, [signed(broken), broken], {}),
        (f"sent by an account of {OTHER}", None, [signed(foreign), foreign], {}),
    ])  # fmt: skip


def test_headers_that_are_missing_or_came_twice():
    missing, twice = Reason.MISSING_HEADER, Reason.DUPLICATE_HEADER
    each_says([("this is not a callback, or a proxy", missing, [{"Content-Type": "application/json"}], {})])
    for name, value in headers().items():
        others = {each: text for each, text in headers().items() if each != name}
        alias = f"HTTP_{name.upper()}"
        each_says([
            (f"the header {name} is missing: find the proxy", missing, [others], {}),
            (f"{name} is missing, but {alias.lower()} is present: something", missing, [others | {alias: value}], {}),
            (f"the header {name} is present more than once: find", twice, [[*headers().items(), (name.lower(), value)]], {}),
        ])  # fmt: skip


def test_headers_in_another_form():
    raw, bad = md5(BODY).digest(), Reason.BAD_FORMAT
    digests = {
        "is empty: its sender had no value": ["", " ", "null", "undefined"],
        "has blanks, quotes or ';' around it": [f" {DIGEST}", f'"{DIGEST}"', f"{DIGEST};", f"b'{DIGEST}'"],
        "is several values, separated by commas": [f"{DIGEST}, {DIGEST}"],
        "is Base64, not hexadecimal digits": [base64.b64encode(raw).decode(), base64.b64encode(LOWER.encode()).decode()],
        "has an unknown format": ["what", "\uff11", DIGEST[3:]],
    }
    times = {
        "is empty": [""],
        "is a date, not milliseconds": ["20260102030405", "2026-01-02 03:04:05", "Fri, 02 Jan 2026 03:04:05 GMT"],
        "has blanks, quotes or ';' around it": [f"{TIME}\t", f"'{TIME}'", f"{TIME};"],
        "has an unknown format": ["-1", "\uff11", "176732304500", f"{TIME}000"],
    }
    each_says([
        (f"the header {name} {words}", bad, [headers(**{name: value})], {})
        for name in ("MD5", "CheckSum")
        for words, values in digests.items()
        for value in values
    ])  # fmt: skip
    each_says([
        (f"the header CurTime {words}", bad, [signed(BODY, time=value)], {})
        for words, values in times.items()
        for value in values
    ])  # fmt: skip
    seconds = signed(BODY, time=TIME[:10])
    each_says([("CurTime is in seconds, not milliseconds. Required", Reason.SECONDS_NOT_MILLISECONDS, [seconds], {})])


def test_how_a_checksum_was_computed():
    quoted = Credentials(app_id=APP, app_token=f'"{TOKEN}"')
    swapped = Credentials(app_id=TOKEN, app_token=APP)
    mistyped = Credentials(app_id="mistyped", app_token=TOKEN)
    both = {"by": [MINE, THEIRS]}

    def of(*parts):
        return [headers(CheckSum=hexed("".join(parts)))]

    each_says([(words, Reason.CHECKSUM_MISMATCH, given_, options) for words, given_, options in [
        ("MD5 and CheckSum are swapped", [headers(MD5=SUM, CheckSum=DIGEST)], {}),
        ("with AppId and AppToken swapped", of(TOKEN, APP, DIGEST, TIME), {}),
        ("with AppId and AppToken swapped", [headers()], {"by": swapped}),
        ("without the blanks or quotes around it: remove them here", [headers()], {"by": quoted}),
        ("with a newline at its end", of(APP, TOKEN, "\n", DIGEST, TIME), {}),
        (f"with the AppToken of application {APP} in lower case", of(APP, TOKEN.lower(), DIGEST, TIME), {}),
        (f"with the AppToken of application {APP} in upper case", of(APP, TOKEN.upper(), DIGEST, TIME), {}),
        ("over MD5 in lower case, unlike the header", of(APP, TOKEN, LOWER, TIME), {}),
        ("over MD5 in upper case, unlike the header", [headers(MD5=LOWER)], {}),
        ("over the time in seconds", of(APP, TOKEN, DIGEST, TIME[:10]), {}),
        ("with its parts in a wrong order", of(APP, TOKEN, TIME, DIGEST), {}),
        *(("without one of its parts", of(*parts), {}) for parts in ((APP, TOKEN, TIME), (TOKEN, DIGEST, TIME))),
        ("without one of its parts", of(APP, DIGEST, TIME), {}),
        (f"with AppId {APP} and the AppToken of application {OTHER}", of(APP, OTHER_TOKEN, DIGEST, TIME), both),
        (f"with AppId {OTHER} and the AppToken of application {APP}", of(OTHER, TOKEN, DIGEST, TIME), both),
        (f"with AppId {APP}, which is not configured here, and", [headers()], {"by": mistyped}),
        (f"belongs to application {APP}, which is not configured here: add", [headers()], {"by": THEIRS}),
        ("does not match the token configured here", of("x"), {}),
        ("none of the 2 tokens configured here, and no usual mistake", of("x"), both),
    ]])  # fmt: skip
    assert APP not in say(headers(), by=swapped).text


TEXT = '{"body":"你好, 世界", "at": "a/b"}'


def test_how_a_body_was_changed():
    rewritten = [
        json.dumps(json.loads(TEXT), ensure_ascii=ascii_only, separators=separators, sort_keys=ordered).encode()
        for separators, ascii_only, ordered in itertools.product([(",", ":"), (", ", ": ")], [True, False], [True, False])
    ]
    spaced = b'{ "body" :"\\u4f60\\u597d, \\u4e16\\u754c" , "at":"a/b"}'
    cut = {"Content-Length": str(len(BODY))}
    each_says([(words, Reason.BODY_MISMATCH, [signed(sent) | more, came], {}) for words, sent, came, more in [
        ("the body is empty here", BODY, b"", {}),
        (f"the body was cut off: it has {len(BODY) - 3} bytes here", BODY, BODY[:-3], cut),
        ("a newline at its end was removed", BODY + b"\n", BODY, {}),
        ("a newline at its end was removed", BODY + b"\r\n", BODY, {}),
        ("white space around it was added", BODY, b" " + BODY + b"\r\n", {}),
        ("its line ends were converted", b'{\r\n"a":1\r\n}', b'{\n"a":1\n}', {}),
        ("its line ends were converted", b'{\n"a":1\n}', b'{\r\n"a":1\r\n}', {}),
        *(("it was parsed and serialized again", sent, spaced, {}) for sent in rewritten),
        ("it was parsed and serialized again", rewritten[0].replace(b"/", b"\\/"), TEXT.encode(), {}),
        ("it was parsed and serialized again", json.dumps(json.loads(BODY), indent=2).encode(), BODY, {}),
        ("again (gb18030 became utf-8)", TEXT.encode("gbk"), TEXT.encode(), {}),
        ("again (utf-8 became gb18030)", TEXT.encode(), TEXT.encode("gbk"), {}),
        ("again (utf-8 became latin-1)", '"éÿ"'.encode(), '"éÿ"'.encode("latin-1"), {}),
        ("no usual change explains it", BODY, b'{"another":1}', {"Content-Length": "many"}),
    ]])  # fmt: skip


def test_size_encoding_and_time():
    gzipped = headers(**{"content-encoding": "gzip"})
    last = signed(BODY, time="9" * 13)
    stale, small = NOW + timedelta(minutes=6), Policy(max_body=10)
    each_says([
        (f"the body has {len(BODY)} bytes, the limit is 10: raise", Reason.TOO_LARGE, [headers()], {"policy": small}),
        ("the request has a Content-Encoding. The description has none", Reason.UNSUPPORTED_ENCODING, [gzipped], {}),
        ("accepted", None, [headers(**{"content-encoding": "identity"})], {}),
        ("the limit is 300 s (Policy.back). If it has just arrived", Reason.STALE, [headers()], {"now": stale}),
        ("8 hours 0 minutes, like a time zone's", Reason.STALE, [headers()], {"now": NOW + timedelta(hours=8, seconds=20)}),
        ("5 hours 30 minutes, like", Reason.STALE, [headers()], {"now": NOW + timedelta(hours=5, minutes=30)}),
        ("8 hours 0 minutes, like", Reason.FUTURE, [headers()], {"now": NOW - timedelta(hours=8)}),
        ("the limit is 60 s (Policy.ahead). Compare", Reason.FUTURE, [headers()], {"now": NOW - timedelta(minutes=2)}),
        ("ahead", Reason.FUTURE, [last], {}),
        ("accepted", None, [last], {"policy": Policy(back=None, ahead=None)}),
    ])  # fmt: skip


def test_what_is_no_delivery_and_what_the_caller_must_bring():
    for told in (None, 7, [("a",)], {"MD5": 7}, [(1, 2)], {("a", "b"): "c"}, iter([("MD5", None)])):
        assert explain(told, BODY, credentials=MINE, now=NOW).reason is Reason.BAD_FORMAT
    assert "pass the raw bytes of the request" in explain(headers(), BODY.decode(), credentials=MINE, now=NOW).text
    with pytest.raises(InvalidRequest, match="time zone"):
        explain(headers(), BODY, credentials=MINE, now=NOW.replace(tzinfo=None))
    with pytest.raises(InvalidRequest, match="at least one"):
        explain(headers(), BODY, credentials=[], now=NOW)


VALUES = st.one_of(
    st.sampled_from([SUM, DIGEST, TIME, "", f"{SUM};", TIME[:10]]),
    st.text(max_size=40),
    st.text(alphabet="0123456789abcdefABCDEF-=,'\"b;x", max_size=70),
)
BODIES = st.one_of(st.sampled_from([BODY, b"", gzip.compress(BODY), base64.b64encode(BODY)]), st.binary(max_size=60))


@given(
    told=st.lists(st.tuples(st.sampled_from(["CheckSum", "md5", "CurTime", "Content-Length", "x-md5"]), VALUES), max_size=6),
    body=BODIES,
    seconds=st.integers(-(10**6), 10**6),
    whole=st.booleans(),
)
def test_it_never_raises_and_agrees_with_verify(told, body, seconds, whole):
    say([*(headers().items() if whole else ()), *told], body, now=NOW + timedelta(seconds=seconds), by=[MINE, THEIRS])
