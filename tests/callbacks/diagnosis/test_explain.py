"""Why a delivery is not accepted: each row of the tables, shown by a delivery that was made by hand."""

import base64
import gzip
import hmac
import html
import itertools
import json
import urllib.parse
import zlib
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from hashlib import md5, sha1, sha256

import pytest
from hypothesis import given, strategies as st

from rbim import Credentials, InvalidRequest
from rbim.callbacks.diagnosis.bodies import VARIANTS
from rbim.callbacks.diagnosis.checksums import RECIPES
from rbim.callbacks.diagnosis.explain import explain
from rbim.callbacks.diagnosis.headers import DIGESTS, TIMES, read_digest, read_time
from rbim.callbacks.signature import Policy, Reason, Rejected, verify

# Invented credentials.
APP, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0C4b9de2a14f5c8b3e6d1a90c2f4e8"
OTHER, OTHER_TOKEN = "bbf98f8947b5d6c80147b8a2b7c30456", "8e0c4b9de2a14f5c8b3e6d1a90c2f4e9"
TOKENS = (TOKEN, OTHER_TOKEN)
MINE = Credentials(app_id=APP, app_token=TOKEN)
THEIRS = Credentials(app_id=OTHER, app_token=OTHER_TOKEN)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIME = "1767323045000"
BODY = f'{{"eventType":"1","convType":"TEAM","to":"g1","fromAccount":"{APP}#1001","msgType":"TEXT","msgId":"m1"}}'.encode()


def hexed(content, algorithm=md5):
    return algorithm(content if isinstance(content, bytes) else content.encode()).hexdigest().upper()


DIGEST = hexed(BODY)
SUM = hexed(APP + TOKEN + DIGEST + TIME)


def headers(**changed):
    return {"CheckSum": SUM, "MD5": DIGEST, "CurTime": TIME} | changed


def signed(body, app=APP, token=TOKEN, time=TIME):
    return {"MD5": hexed(body), "CurTime": time, "CheckSum": hexed(app + token + hexed(body) + time)}


def say(told, body=BODY, *, by=MINE, now=NOW, **options):
    """Explain, and look for what must hold whatever comes."""
    findings = explain(told, body, credentials=by, now=now, **options)
    verdict = verify(told, body, credentials=by, now=now, **options)
    if isinstance(verdict, Rejected):
        assert findings[0].reason is not None
        assert verdict.reason in {finding.reason for finding in findings}
    else:
        assert findings[0].reason is None
    for finding in findings:
        assert finding.text.isprintable()
        assert not any(token.lower() in finding.text.lower() for token in TOKENS)
    return findings


def only(findings, reason):
    (finding,) = findings
    assert finding.reason is reason
    return finding.text


# --------------------------------------------------------------------------------------------------------------- accepted


def test_a_correct_delivery_is_one_finding():
    assert only(say(headers()), None) == f"accepted: it was signed by application {APP}, and is 0 ms old"
    ahead = say(headers(), now=NOW - timedelta(seconds=1.5))
    assert only(ahead, None) == f"accepted: it was signed by application {APP}, and is 1.5 s ahead of this clock"


def test_an_older_token_is_named_by_its_number():
    current = Credentials(app_id=APP, app_token="renewed")
    text = only(say(headers(), by=[THEIRS, current, MINE], now=NOW + timedelta(minutes=2, seconds=3)), None)
    assert f"application {APP} (older token 1), and is 2 minutes 3 seconds old. That token is no longer" in text


@pytest.mark.parametrize(
    ("body", "reason", "said"),
    [
        (b"[1", Reason.BAD_FORMAT, "the body cannot be read: not JSON"),
        (f'{{"fromAccount":"{OTHER}#1"}}'.encode(), Reason.APP_MISMATCH, f"sent by an account of {OTHER}"),
    ],
)
def test_what_is_accepted_may_not_be_handled(body, reason, said):
    for now in (NOW, NOW + timedelta(days=1)):
        first, second = say(signed(body), body, now=now)
        assert first.reason is (None if now is NOW else Reason.STALE)
        assert second.reason is reason
        assert second.text.startswith("it is stored in quarantine and not handled: ")
        assert said in second.text


# ---------------------------------------------------------------------------------------------------------------- headers


def test_no_headers_at_all():
    assert "this is not a callback, or a proxy" in only(say({"Content-Type": "application/json"}), Reason.MISSING_HEADER)


@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
def test_a_missing_header_is_named_and_one_that_looks_like_it(name):
    told = headers()
    value = told.pop(name)
    assert only(say(told), Reason.MISSING_HEADER) == (
        f"the header {name} is missing: find the proxy or gateway on the way that drops it"
    )
    text = only(say({f"HTTP_{name.upper()}": value, **told}), Reason.MISSING_HEADER)
    assert text == (
        f"the header {name} is missing, but http_{name.lower()} is present: something on the way renames headers."
        f" Forward it as {name}"
    )


@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
def test_a_header_that_came_twice(name):
    again = (name.lower().encode(), headers()[name].encode())
    text = only(say([*headers().items(), again]), Reason.DUPLICATE_HEADER)
    assert text.startswith(f"the header {name} is present 2 times, with the same value each time")
    assert "with different values" in say([*headers().items(), (name, "x")])[0].text


LOWER = DIGEST.lower()
RAW = md5(BODY).digest()
LOST = "00000" + hexed(b"x")[5:]
DIGEST_FORMS = {
    "is empty": " ",
    "has white space around it": f" {DIGEST}",
    "is the same value twice, separated by a comma: two headers were merged into one": f"{DIGEST}, {DIGEST}",
    "is several values, separated by commas: several headers were merged into one": f"{DIGEST}, {hexed(b'')}",
    "ends with ';' (as in the platform's own header samples)": f"{DIGEST};",
    "is a Python bytes literal, b'...'": f"b'{DIGEST}'",
    "is in quotes": f'"{DIGEST}"',
    "is a null value (null, none, undefined, nil, nan): its sender had no value": "null",
    "starts with 0x": f"0x{LOWER}",
    "has dashes, colons or spaces between its 16 bytes (as .NET's BitConverter writes them)": RAW.hex("-"),
    "is Base64 of the digest, not hexadecimal digits": base64.b64encode(RAW).decode(),
    "is Base64 of the hexadecimal digits": base64.b64encode(LOWER.encode()).decode(),
    "is the digest's 16 raw bytes, not hexadecimal digits": RAW,
    "has 16 hexadecimal digits: the short form of MD5, the middle 16 of 32": DIGEST[8:24],
    "lacks leading zeros (a digest printed as a number loses them: %x, Java's BigInteger)": LOST[3:],
    "has 40 hexadecimal digits: SHA-1 instead of MD5": hexed(BODY, sha1),
    "has 64 hexadecimal digits: SHA-256 instead of MD5": hexed(BODY, sha256),
    "has non-ASCII characters": "\uff11\uff12\uff13",
}
UNREADABLE = (
    "is empty",
    "is a null",
    "is several",
    "has 16 hex",
    "has non-ASCII",
    "is negative",
    "has a wrong number",
)


def found(name, what):
    """The finding about a header's form."""
    required = "13 digits, milliseconds since 1970-01-01 UTC" if name == "CurTime" else "32 hexadecimal digits"
    return f"the header {name} {what}. Required: {required}. Forward the header unchanged"


def is_unreadable(what):
    return what.startswith(UNREADABLE)


def test_each_form_of_a_digest_has_its_example():
    assert set(DIGEST_FORMS) == {deviation.text for deviation in DIGESTS}


@pytest.mark.parametrize("what", DIGEST_FORMS)
def test_what_a_digest_looks_like(what):
    value = DIGEST_FORMS[what]
    findings = say(headers(MD5=value))
    assert (findings[0].reason, findings[0].text) == (Reason.BAD_FORMAT, found("MD5", what))
    if not is_unreadable(what) and value != LOST[3:]:
        assert not any(finding.reason is Reason.BODY_MISMATCH for finding in findings)  # it was understood
    assert found("CheckSum", what) in {finding.text for finding in say(headers(CheckSum=value))}


def test_looks_come_together_and_the_rest_is_still_judged():
    texts = [finding.text for finding in say({name: f'"{value}";' for name, value in headers().items()})]
    assert [text.partition(" ")[0] for text in texts] == ["the"] * 6
    assert read_digest(LOST[3:].encode()).intended == LOST.encode()
    assert read_digest(base64.urlsafe_b64encode(b"\xff" * 16).rstrip(b"=")).intended == b"f" * 32
    (finding,) = say(headers(MD5="what"))
    assert finding.text == found("MD5", "is not 32 hexadecimal digits but 4 characters of an unknown format")
    assert len(read_digest(b"'" * 40 + DIGEST.encode() + b"'" * 40).deviations) < 8


BEIJING = timezone(timedelta(hours=8))
TIME_FORMS = {
    "is empty": "",
    "has white space around it": f"{TIME}\t",
    "is the same value twice, separated by a comma: two headers were merged into one": f"{TIME},{TIME}",
    "is several values, separated by commas: several headers were merged into one": f"{TIME},1",
    "ends with ';' (as in the platform's own header samples)": f"{TIME};",
    "is a Python bytes literal, b'...'": f'b"{TIME}"',
    "is in quotes": f"'{TIME}'",
    "is a null value (null, none, undefined, nil, nan): its sender had no value": "undefined",
    "is in seconds, not milliseconds": TIME[:10],
    "is in seconds with a fraction, not milliseconds": "1767323045.0",
    "is in milliseconds with a fraction": f"{TIME}.0",
    "is in exponent notation": "1.767323045E12",
    "is in microseconds, not milliseconds": f"{TIME}000",
    "is in nanoseconds, not milliseconds": f"{TIME}000000",
    "is a date, yyyyMMddHHmmss, not milliseconds since 1970": "20260102030405",
    "is a date, yyyyMMddHHmmssSSS, not milliseconds since 1970": "20260102030405000",
    "is in ticks of 100 ns since the year 1 (.NET's), not milliseconds since 1970": "639029198450000000",
    "is a date, not milliseconds since 1970": "2026-01-02 03:04:05",
    "is a date in HTTP or e-mail format, not milliseconds since 1970": format_datetime(NOW, usegmt=True),
    "is negative": "-1",
    "has non-ASCII characters": "\uff11",
    "has a wrong number of digits": "176732304500",
}


def test_each_form_of_a_time_has_its_example():
    assert set(TIME_FORMS) == {deviation.text for deviation in TIMES}


@pytest.mark.parametrize("what", TIME_FORMS)
def test_what_a_time_looks_like(what):
    value = TIME_FORMS[what]
    reason = Reason.SECONDS_NOT_MILLISECONDS if "seconds, not" in what and len(value) == 10 else Reason.BAD_FORMAT
    told = signed(BODY, time=value)
    assert only(say(told), reason) == found("CurTime", what)
    intended = read_time(value.encode()).intended
    assert intended == (None if is_unreadable(what) else TIME.encode())
    if intended is not None:  # then it is also judged
        assert say(told, now=NOW + timedelta(days=1))[-1].reason is Reason.STALE


def test_dates_that_are_none_and_dates_with_a_zone():
    assert read_time(b"20261301000000").intended is None
    assert read_time(b"Xxx, nonsense").intended is None
    assert read_time(NOW.astimezone(BEIJING).isoformat().encode()).intended == TIME.encode()
    assert read_time(b"9e99").intended is None
    assert say(signed(BODY, time="2026-01-02 03:04:05") | {"CheckSum": SUM})[-1].reason is Reason.CHECKSUM_MISMATCH


# --------------------------------------------------------------------------------------------------------------- CheckSum

NAMED = {"AppId": APP, "AppToken": TOKEN, "MD5": DIGEST, "CurTime": TIME}
INORDER = APP + TOKEN + DIGEST + TIME
SEPARATORS = ("&", ":", "|", ",", ";", "+", "-", "_", ".", "/", "#", "$", "@", "=", " ", "\n", "\r\n", "\t")


def keyed(message, algorithm="md5"):
    return hmac.new(TOKEN.encode(), message.encode(), algorithm).hexdigest().upper()


def recipes():
    for order in itertools.permutations(NAMED):
        joined = "".join(NAMED[name] for name in order)
        if order[:2] == ("AppToken", "AppId") and order[2:] == ("MD5", "CurTime"):
            yield "with AppId and AppToken swapped", hexed(joined)
        elif order != tuple(NAMED):
            yield f"with its parts in a wrong order: {', '.join(order)}", hexed(joined)
    for by in SEPARATORS:
        yield f"with {by!r} between its parts", hexed(by.join(NAMED.values()))
    for end in ("\n", "\r\n"):
        yield f"with {end!r} at the end", hexed(INORDER + end)
    for count in (1, 2):
        for out in itertools.combinations(NAMED, count):
            joined = "".join(value for name, value in NAMED.items() if name not in out)
            yield f"without {' and '.join(out)}", hexed(joined)
    yield "as the digest of the MD5 header alone", hexed(DIGEST)
    yield "as a copy of the digest: CheckSum is the body's digest", DIGEST
    yield "as an HMAC with AppToken as its key", keyed(APP + DIGEST + TIME)
    yield "as an HMAC with AppToken as its key, without AppId", keyed(DIGEST + TIME)
    yield "as an HMAC of the digest with AppToken as its key", keyed(DIGEST)


MADE = list(recipes())


def test_each_way_to_make_a_checksum_has_its_example():
    assert len(MADE) == len({words for words, _ in MADE}) == len(RECIPES) - 1
    for recipe in RECIPES[1:]:
        assert any(recipe.text.startswith(words) for words, _ in MADE), recipe.text


@pytest.mark.parametrize(("words", "checksum"), MADE, ids=[words for words, _ in MADE])
def test_how_a_checksum_was_made(words, checksum):
    for told in (checksum, checksum.lower()):
        text = only(say(headers(CheckSum=told), by=[MINE, THEIRS]), Reason.CHECKSUM_MISMATCH)
        assert text.startswith(f"CheckSum was computed {words}")
        assert text.endswith(
            "Required: the MD5 of AppId, AppToken, the text of the MD5 header and CurTime, joined without separators."
            " Correct the credentials here, or the sender"
        )


def test_app_id_and_token_swapped_in_the_configuration_shows_neither():
    wrong = Credentials(app_id=TOKEN, app_token=APP)
    text = only(say(headers(), by=wrong), Reason.CHECKSUM_MISMATCH)
    assert "AppId and AppToken swapped" in text
    assert APP not in text


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (headers(MD5=LOWER), "over MD5 in upper case, unlike the header"),
        (headers(CheckSum=hexed(APP + TOKEN + LOWER + TIME)), "over MD5 in lower case, unlike the header"),
        (headers(CheckSum=hexed(APP + TOKEN + base64.b64encode(RAW).decode() + TIME)), "over the digest in Base64"),
        (headers(CheckSum=hexed((APP + TOKEN).encode() + RAW + TIME.encode())), "over the digest's raw bytes"),
        (headers(CheckSum=hexed((APP + TOKEN).encode() + BODY + TIME.encode())), "over the body itself"),
        (headers(CheckSum=hexed(APP + TOKEN + DIGEST + TIME[:10])), "over the time in seconds"),
        (
            headers(CheckSum=hexed(APP + TOKEN.lower() + DIGEST + TIME)),
            f"with the AppToken of application {APP} in lower case",
        ),
        (
            headers(CheckSum=hexed(APP + TOKEN.upper() + DIGEST + TIME)),
            f"with the AppToken of application {APP} in upper case",
        ),
        (headers(CheckSum=hexed(APP + TOKEN + "\n" + DIGEST + TIME)), "with a newline at its end"),
        (
            headers(CheckSum=hexed(APP + OTHER_TOKEN + DIGEST + TIME)),
            f"with AppId {APP} and the AppToken of application {OTHER}",
        ),
        (
            headers(CheckSum=hexed(OTHER + TOKEN + DIGEST + TIME)),
            f"with AppId {OTHER} and the AppToken of application {APP}",
        ),
        (
            headers(CheckSum=hexed(f"{APP}:{TOKEN}:{LOWER}:{TIME}")),
            "over MD5 in lower case, unlike the header and with ':' between",
        ),
    ],
)
def test_what_stood_for_a_part_of_it(told, words):
    text = only(say(told, by=[MINE, THEIRS]), Reason.CHECKSUM_MISMATCH)
    assert words in text


def test_a_token_in_quotes_is_the_configurations():
    quoted = Credentials(app_id=APP, app_token=f'"{TOKEN}"')
    assert "without the quotes around it" in only(say(headers(), by=quoted), Reason.CHECKSUM_MISMATCH)


def test_the_digest_was_taken_of_another_body():
    first, second = say(headers(MD5=hexed(b"other")))
    assert "over the digest of the body received here, which differs from the MD5 header" in first.text
    assert second.reason is Reason.BODY_MISMATCH


def test_md5_and_checksum_interchanged():
    text = only(say(headers(MD5=SUM, CheckSum=DIGEST)), Reason.CHECKSUM_MISMATCH)
    assert text == ("MD5 and CheckSum are swapped: each header has the value of the other. Correct the code that sets them")


@pytest.mark.parametrize(
    "missing", [names for count in range(1, 4) for names in itertools.combinations(("CheckSum", "MD5", "CurTime"), count)]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_headers_that_are_missing_are_told_whatever_the_others_are(missing, swapped):
    given = headers(CheckSum=DIGEST, MD5=SUM) if swapped else headers()
    for name in missing:
        del given[name]
    reasons = [each.reason for each in explain(given, BODY, credentials=MINE, now=NOW)]
    assert Reason.MISSING_HEADER in reasons
    assert None not in reasons


@pytest.mark.parametrize("algorithm", [sha1, sha256])
def test_other_algorithms(algorithm):
    name = algorithm.__name__.removeprefix("openssl_")
    digest = hexed(BODY, algorithm)
    told = headers(MD5=digest, CheckSum=hexed(APP + TOKEN + digest + TIME, algorithm))
    assert {finding.reason for finding in say(told)} == {Reason.BAD_FORMAT}
    told["CheckSum"] = keyed(APP + digest + TIME, name)
    assert "as an HMAC" in say(told)[-1].text


def test_an_application_that_is_not_known():
    text = only(say(headers(), by=THEIRS), Reason.CHECKSUM_MISMATCH)
    assert f"sender belongs to application {APP}, which is not configured here: add its AppId and AppToken" in text
    wrong_id = Credentials(app_id="mistyped", app_token=TOKEN)
    text = only(say(headers(), by=wrong_id), Reason.CHECKSUM_MISMATCH)
    assert f"with AppId {APP}, which is not configured here, and the AppToken of application mistyped" in text


def test_a_checksum_that_nothing_explains():
    one = only(say(headers(CheckSum=hexed(b"x"))), Reason.CHECKSUM_MISMATCH)
    assert "does not match the token configured here" in one
    assert "the account's token" in one
    two = only(say(headers(CheckSum=hexed(b"x")), by=[MINE, THEIRS]), Reason.CHECKSUM_MISMATCH)
    assert "does not match any of the 2 tokens" in two


# ------------------------------------------------------------------------------------------------------------------- body

DOCUMENT = '{ "b" :"你/<" , "a":[ "x",1] }'
STRINGS = {  # by whether it is ASCII only, and by how it is escaped
    (False, ""): "你/<",
    (True, ""): r"\u4f60/<",
    (False, ", '/' escaped (PHP)"): r"你\/<",
    (True, ", '/' escaped (PHP)"): r"\u4f60\/<",
    (True, ", escapes in upper case (Java)"): r"\u4F60/<",
    (False, ", '<', '>', '&', '=' and ''' escaped (Gson)"): r"你/\u003c",
    (True, ", '<', '>', '&', '=' and ''' escaped (Gson)"): r"\u4f60/\u003c",
}
SPACES = {
    "compact": (",", ":"),
    "with spaces after commas and colons": (", ", ": "),
    "with spaces after colons": (",", ": "),
}


def rewritten():
    for (spaces, (comma, colon)), ((ascii_only, how), text), is_sorted in itertools.product(
        SPACES.items(), STRINGS.items(), (False, True)
    ):
        members = [f'"b"{colon}"{text}"', f'"a"{colon}["x"{comma}1]']
        name = f"json {spaces}{', ASCII only' if ascii_only else ''}{', keys sorted' if is_sorted else ''}{how}"
        # what came: something that no other way of writing gives
        yield name, f"{{{comma.join(members[::-1] if is_sorted else members)}}}".encode(), DOCUMENT.encode()


TEXT = '{"body":"你好, 世界"}'
CHARSETS = {
    "GBK read as UTF-8": (TEXT, "gbk", "utf-8"),
    "UTF-8 read as GBK": ('"你🎉"', "utf-8", "gb18030"),
    "Big5 read as UTF-8": ('"世界"', "big5", "utf-8"),
    "UTF-16 read as UTF-8": (TEXT, "utf-16", "utf-8"),
    "UTF-16-LE read as UTF-8": (TEXT, "utf-16-le", "utf-8"),
    "UTF-16-BE read as UTF-8": (TEXT, "utf-16-be", "utf-8"),
    "UTF-8 read as UTF-16": (TEXT, "utf-8", "utf-16"),
    "UTF-8 read as UTF-16-BE": ('"é"', "utf-8", "utf-16-be"),
    "Latin-1 read as UTF-8": ('"éÿ"', "latin-1", "utf-8"),
    "Windows-1252 read as UTF-8": ('"“€”"', "cp1252", "utf-8"),
    "UTF-8 read as Latin-1": ('"éÿ"', "utf-8", "latin-1"),
}
ESCAPED = TEXT.encode().replace(b'"', b"&quot;")
DELIVERED = {  # by the variant's name: what was sent, and what came
    "empty": (b"", BODY),
    "newline removed": (BODY + b"\n", BODY),
    "newline added": (BODY, BODY + b"\r\n"),
    "white space added": (BODY, b" " + BODY + b"\n\n"),
    "CRLF to LF": (b'{\r\n"a":1\r\n}', b'{\n"a":1\n}'),
    "LF to CRLF": (b'{\n"a":1\n}', b'{\r\n"a":1\r\n}'),
    "byte order mark removed": (b"\xef\xbb\xbf" + BODY, BODY),
    "byte order mark added": (BODY, b"\xef\xbb\xbf" + BODY),
    **{name: (sent, came) for name, sent, came in rewritten()},
    "json indented": (b'{\r\n  "a": [\r\n    1\r\n  ]\r\n}', b'{"a":[1]}'),
    "json in a json text": (BODY, b'"' + BODY.replace(b'"', b'\\"') + b'"'),
    "json text taken out": (b'"' + BODY.replace(b'"', b'\\"') + b'"', BODY),
    **{name: (text.encode(was), text.encode(now)) for name, (text, was, now) in CHARSETS.items()},
    "replaced by question marks": (b'{"body":"??, ??"}', TEXT.encode()),
    "percent-encoded": (BODY, urllib.parse.quote_plus(BODY).encode() + b"="),
    "percent-decoded": (urllib.parse.quote_plus(BODY).encode(), BODY),
    "html escaped": (TEXT.encode(), ESCAPED),
    "base64": (TEXT.encode(), base64.b64encode(TEXT.encode())),
    "python bytes": (TEXT.encode(), str(TEXT.encode()).encode()),
    "compressed": (BODY, gzip.compress(BODY)),
    "chunked": (BODY, b"5;x=y\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\n\r\n"),
    "lower case": (b'{"to":"g1"}', b'{"TO":"G1"}'),
    "upper case": (b'{"TO":"G1"}', b'{"to":"g1"}'),
    "NUL added": (BODY, BODY + b"\0\0"),
}


def test_each_variant_of_a_body_has_its_example():
    assert set(DELIVERED) == {variant.name for variant in VARIANTS}
    assert len({variant.text for variant in VARIANTS}) == len(VARIANTS)


BY_NAME = {variant.name: variant for variant in VARIANTS}


@pytest.mark.parametrize("name", DELIVERED)
def test_what_was_done_to_a_body(name):
    sent, came = DELIVERED[name]
    text = only(say(signed(sent), came), Reason.BODY_MISMATCH)
    assert text == f"MD5 is the digest of {BY_NAME[name].text}"


@pytest.mark.parametrize(
    ("name", "sent", "came"),
    [
        ("compressed", BODY, zlib.compress(BODY)),
        ("compressed", BODY, zlib.compress(BODY)[2:-4]),
        ("percent-encoded", BODY, b"body=" + urllib.parse.quote(BODY).encode()),
        ("html escaped", BODY, html.escape(BODY.decode()).encode()),
        ("json indented", json.dumps(json.loads(BODY), indent="\t").encode(), BODY),
        ("newline removed", BODY + b"\r\n", BODY),
        ("python bytes", bytes(range(256)), str(bytes(range(256))).encode()),
        ("python bytes", b"it's \\x41", str(b"it's \\x41").encode()),
        ("white space added", BODY + b"\n", b"\n" + BODY + b"\n"),
    ],
)
def test_more_of_what_is_done_to_bodies(name, sent, came):
    assert only(say(signed(sent), came), Reason.BODY_MISMATCH) == f"MD5 is the digest of {BY_NAME[name].text}"


def test_an_empty_body_was_read_before():
    assert "the body is empty here, but was not when it was signed" in only(say(headers(), b""), Reason.BODY_MISMATCH)


def test_a_body_of_another_length_than_told():
    told = headers(**{"Content-Length": str(len(BODY))})
    cut = only(say(told, BODY[:-3]), Reason.BODY_MISMATCH)
    assert cut == (
        f"the body was cut off: it has {len(BODY) - 3} bytes here, Content-Length is {len(BODY)}. Read or capture all of it"
    )
    more = only(say(told, BODY + b"---"), Reason.BODY_MISMATCH)
    assert more.endswith(f"the first {len(BODY)} bytes (Content-Length): remove the 3 added after them")


@pytest.mark.parametrize("more", [{}, {"Content-Length": "3"}, {"Content-Length": "many"}])
def test_another_body(more):
    text = only(say(headers(**more), b'{"another":1}'), Reason.BODY_MISMATCH)
    assert "no usual change explains it" in text


# ------------------------------------------------------------------------------------------------------------ size, encoding


def test_size_and_encoding_are_said_with_the_rest():
    first, second = say(headers(**{"content-encoding": "gzip"}), policy=Policy(max_body=10))
    assert (first.reason, second.reason) == (Reason.TOO_LARGE, Reason.UNSUPPORTED_ENCODING)
    assert first.text == f"the body has {len(BODY)} bytes; the limit is 10: raise Policy.max_body to accept it"
    assert "the request has Content-Encoding gzip. The description has none" in second.text
    assert only(say(headers(**{"content-encoding": "identity"})), None)
    assert only(say(headers(**{"content-encoding": "identity"}), now=NOW + timedelta(days=1)), Reason.STALE)
    packed = gzip.compress(BODY)
    encoded, changed = say(headers(**{"content-encoding": "gzip"}), packed)
    assert encoded.reason is Reason.UNSUPPORTED_ENCODING
    assert "the decompressed body" in changed.text


# ------------------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("later", "reason", "said"),
    [
        ({"minutes": 6}, Reason.STALE, "which is 6 minutes ago; the limit is 5 minutes (Policy.back). If"),
        ({"days": 3, "hours": 1}, Reason.STALE, "which is 3 days 1 hour ago"),
        (
            {"hours": 8, "seconds": 20},
            Reason.STALE,
            "The difference is 8 hours 0 minutes, like a time zone's: the sender or",
        ),
        ({"hours": 5, "minutes": 30}, Reason.STALE, "The difference is 5 hours 30 minutes, like"),
        (
            {"hours": -8, "seconds": -1},
            Reason.FUTURE,
            "The difference is 8 hours 0 minutes, like a time zone's: the sender or",
        ),
        (
            {"minutes": -2},
            Reason.FUTURE,
            "which is 2 minutes ahead; the limit is 1 minute (Policy.ahead). Compare",
        ),
    ],
)
def test_how_far_the_clocks_are_apart(later, reason, said):
    text = only(say(headers(), now=NOW + timedelta(**later)), reason)
    assert text.startswith("CurTime is 2026-01-02 03:04:05.000+00:00")
    assert said in text


def test_the_last_times_of_all():
    assert only(say(signed(BODY, time="9" * 13)), Reason.FUTURE).startswith("CurTime is 2286-11-20")
    told = signed(BODY, time="9" * 13)
    assert only(say(told, policy=Policy(back=None, ahead=None)), None)


# --------------------------------------------------------------------------------------------------------- whatever comes


@pytest.mark.parametrize("told", [None, 7, [("a",)], {"MD5": 7}, [(1, 2)], {("a", "b"): "c"}, iter([("MD5", None)])])
def test_headers_that_are_none(told):
    (finding,) = explain(told, BODY, credentials=MINE, now=NOW)
    assert finding.reason is Reason.BAD_FORMAT


def test_a_body_that_is_no_bytes():
    (finding,) = explain(headers(), BODY.decode(), credentials=MINE, now=NOW)
    assert finding.reason is Reason.BAD_FORMAT
    assert "pass the raw bytes of the request as received" in finding.text


def test_what_the_caller_must_bring():
    with pytest.raises(InvalidRequest, match="time zone"):
        explain(headers(), BODY, credentials=MINE, now=NOW.replace(tzinfo=None))
    with pytest.raises(InvalidRequest, match="at least one"):
        explain(headers(), BODY, credentials=[], now=NOW)


VALUES = st.one_of(
    st.sampled_from([SUM, DIGEST, TIME, "", f"{SUM};", TIME[:10], *map(str, TIME_FORMS.values())]),
    st.text(max_size=40),
    st.text(alphabet="0123456789abcdefABCDEF-=,'\"b;x", max_size=70),
)
BODIES = st.one_of(st.sampled_from([BODY, b"", *(came for _, came in DELIVERED.values())]), st.binary(max_size=60))


@given(
    told=st.lists(st.tuples(st.sampled_from(["CheckSum", "md5", "CurTime", "Content-Length", "x-md5"]), VALUES), max_size=6),
    body=BODIES,
    seconds=st.integers(-(10**6), 10**6),
    whole=st.booleans(),
)
def test_it_never_raises_and_agrees_with_verify(told, body, seconds, whole):
    say([*(headers().items() if whole else ()), *told], body, now=NOW + timedelta(seconds=seconds), by=[MINE, THEIRS])
