"""The signature of a delivery: sums that other programs worked out, forgeries, and whatever else may come instead of one."""

import copy
import hashlib
import importlib.util
import logging
import pickle
import subprocess
import traceback
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from hashlib import md5
from pathlib import Path
from types import MappingProxyType

import attrs
import httpx
import pytest
from hypothesis import assume, example, given, settings, strategies as st
from multidict import CIMultiDict, CIMultiDictProxy, MultiDict

from helpers.credentials import APP_ID, OTHER_APP, TOKEN
from helpers.md5_extension import START, digest_from, extended
from helpers.paths import PACKAGE
from helpers.signatures import (
    ARABIC,
    BODY,
    MINE,
    NOW,
    OLD_TOKEN,
    OLDER_TOKEN,
    OTHER_TOKEN,
    assert_refused,
    check,
    credentials,
    own_sum,
    signed,
)
from rbim import CHINA, InvalidRequest
from rbim.callbacks import signature
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.signature import Key, Keys, Policy, Reason, Rejected, Verified, keys_of, sign, verify

TOKENS = (TOKEN, OLD_TOKEN, OLDER_TOKEN, OTHER_TOKEN)

MILLISECONDS = "1767323045000"
ANY_TIME = Policy(back=None, ahead=None)


def triple(digest, moment, **by):
    return {"MD5": digest, "CurTime": moment, "CheckSum": own_sum(digest, moment, **by)}


def digest_of(body=BODY):
    return md5(body).hexdigest().upper()


# ---------------------------------------------------------------------- against sums of other programs


def md5sum(data):
    done = subprocess.run(
        ["sh", "-c", "printf '%s' \"$1\" | md5sum", "sh", data] if isinstance(data, str) else ["md5sum"],
        input=None if isinstance(data, str) else data,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().split()[0]


VECTORS = [
    ("{}", NOW, "1767323045000"),
    ("", datetime(2026, 1, 2, 11, 4, 5, 6_000, tzinfo=CHINA), "1767323045006"),
    ('{"body":"你好 🎉"}', datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), "1000000000000"),
    ("%s %d \\n", datetime(2286, 11, 20, 17, 46, 39, 999_999, tzinfo=UTC), "9999999999999"),
]


def test_what_is_signed_against_md5sum():
    for text, now, moment in VECTORS:
        headers = sign(text.encode(), credentials=MINE, now=now)
        digest = md5sum(text).upper()
        checksum = md5sum(APP_ID + TOKEN + digest + moment).upper()
        assert headers == {"MD5": digest, "CurTime": moment, "CheckSum": checksum}
        result = check(headers, text.encode(), now=now)
        assert result == Verified(key=Key(APP_ID, 0), age=pytest.approx(0, abs=0.001), cur_time=int(moment))


def test_what_is_signed_against_values_written_down():
    """The first of those vectors, kept for machines without md5sum."""
    assert signed(b"{}") == {
        "MD5": "99914B932BD37A50B983C5E7C90AE93B",
        "CurTime": MILLISECONDS,
        "CheckSum": "8E2BAB9FA43D2638E5766404A69FD5CF",
    }


def test_a_signed_time_is_the_whole_millisecond_that_has_begun():
    at = NOW + timedelta(microseconds=1_999)
    assert signed(now=at)["CurTime"] == "1767323045001"
    assert signed(now=at.astimezone(timezone(timedelta(hours=-11))))["CurTime"] == "1767323045001"
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for year in (2001, 2026, 2200):
        moments = [datetime(year, 12, 1, tzinfo=UTC) + timedelta(milliseconds=number) for number in range(1000)]
        told = [signed(b"", now)["CurTime"] for now in moments]
        assert told == [str((now - epoch) // timedelta(milliseconds=1)) for now in moments]


# --------------------------------------------------------------------------- what was signed verifies

MOMENTS = st.datetimes(datetime(2001, 9, 10), datetime(2286, 11, 20), timezones=st.just(UTC))  # noqa: DTZ001  # st adds it
BODIES = st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))


@settings(deadline=None, max_examples=50)
@given(body=BODIES, now=MOMENTS)
@example(body=b"", now=NOW)
@example(body=b"\0", now=NOW)
@example(body=b"x" * 1024 * 1024, now=NOW)
def test_what_was_signed_verifies(body, now):
    result = check(sign(body, credentials=MINE, now=now), body, now=now)
    assert isinstance(result, Verified)
    assert result.key == Key(APP_ID, 0)
    assert abs(result.age) <= 0.001


def encoded(headers):
    return [(name.encode(), value.encode()) for name, value in headers.items()]


SHAPES = {
    "dict": dict,
    "dict, lower case": lambda headers: {name.lower(): value for name, value in headers.items()},
    "dict, upper case": lambda headers: {name.upper(): value for name, value in headers.items()},
    "dict, title case": lambda headers: {name.title(): value for name, value in headers.items()},
    "dict, swapped case": lambda headers: {name.swapcase(): value for name, value in headers.items()},
    "dict, other order": lambda headers: dict(reversed(headers.items())),
    "dict of bytes": lambda headers: dict(encoded(headers)),
    "mapping proxy": MappingProxyType,
    "items": lambda headers: headers.items(),
    "text pairs": lambda headers: list(headers.items()),
    "text pairs in lists": lambda headers: [[name, value] for name, value in headers.items()],
    "generator": lambda headers: ((name, value) for name, value in headers.items()),
    "byte pairs": encoded,
    "byte pairs, lower case": lambda headers: [(name.lower(), value) for name, value in encoded(headers)],
    "byte pairs, upper case": lambda headers: [(name.upper(), value) for name, value in encoded(headers)],
    "mixed pairs": lambda headers: [*encoded(headers)[:1], *list(headers.items())[1:]],
    "multidict": MultiDict,
    "multidict without case": CIMultiDict,
    "aiohttp's proxy": lambda headers: CIMultiDictProxy(CIMultiDict(headers)),
    "httpx": httpx.Headers,
}


def in_any_shape(headers, reason, body=BODY):
    """Check headers in each shape; return the shapes in which the result is another one, and all details."""
    results = {name: check(shape(headers), body) for name, shape in SHAPES.items()}
    found = {name: getattr(result, "reason", None) for name, result in results.items()}
    details = [each.detail for each in results.values()] if reason else []
    return {name: each for name, each in found.items() if each is not reason}, details


def test_headers_may_have_any_shape():
    around = {"Host": "example.com", "Content-Type": "application/json", "X-MD5": "x", "Check-Sum": "x", "MD5-": "x"}
    for headers in (signed(), {**around, **signed()}, {**signed(), **around}):
        assert in_any_shape(headers, None) == ({}, [])


def test_a_missing_header_is_named_in_any_shape():
    for name in signed():
        headers = {each: value for each, value in signed().items() if each != name}
        wrong, details = in_any_shape(headers, Reason.MISSING_HEADER)
        assert wrong == {}
        assert all(name in detail for detail in details)


# ------------------------------------------------------------------------------------ any other byte


@settings(deadline=None, max_examples=60)
@given(body=st.binary(min_size=1, max_size=200), place=st.integers(0, 199), byte=st.integers(0, 255))
def test_any_other_byte_of_the_body_is_refused(body, place, byte):
    place %= len(body)
    assume(body[place] != byte)
    changed = body[:place] + bytes([byte]) + body[place + 1 :]
    assert_refused(check(signed(body), changed), Reason.BODY_MISMATCH)


@settings(deadline=None, max_examples=250)
@given(
    name=st.sampled_from(["CheckSum", "MD5", "CurTime"]),
    place=st.integers(0, 31),
    byte=st.integers(0, 255) | st.sampled_from(b"0123456789abcdefABCDEF"),
)
def test_any_other_byte_of_a_header_is_refused_but_for_the_case_of_the_checksum(name, place, byte):
    headers = {each: value.encode() for each, value in signed().items()}
    value = headers[name]
    place %= len(value)
    assume(value[place] != byte)
    headers[name] = value[:place] + bytes([byte]) + value[place + 1 :]
    results = [check(list(headers.items())), check({each: text.decode("latin-1") for each, text in headers.items()})]
    for result in results:
        if name == "CheckSum" and headers[name].upper() == value:
            assert isinstance(result, Verified)
        else:
            assert isinstance(result, Rejected)


@settings(deadline=None, max_examples=60)
@given(flips=st.lists(st.booleans(), min_size=32, max_size=32))
def test_the_case_of_the_checksum_is_ignored_and_that_of_md5_is_not(flips):
    def flipped(text):
        return "".join(letter.swapcase() if flip else letter for letter, flip in zip(text, flips, strict=True))

    headers = signed()
    assert isinstance(check({**headers, "CheckSum": flipped(headers["CheckSum"])}), Verified)
    digest = flipped(headers["MD5"])
    if digest != headers["MD5"]:
        assert_refused(check({**headers, "MD5": digest}), Reason.CHECKSUM_MISMATCH)
    assert isinstance(check(triple(digest, MILLISECONDS)), Verified)


def test_a_header_that_came_twice_is_refused():
    headers = signed()
    shapes = {
        "list": list,
        "multidict": MultiDict,
        "multidict without case": CIMultiDict,
        "bytes": lambda pairs: [(name.encode(), value.encode()) for name, value in pairs],
        "text and bytes": lambda pairs: [*pairs[:2], *((name.encode(), value.encode()) for name, value in pairs[2:])],
        "two cases in a dict": dict,
    }
    wrong = []
    for name, value in headers.items():
        for again in (value, value.replace("0", "1")):
            for pairs in ([(name.lower(), again), *headers.items()], [*headers.items(), (name.lower(), again)]):
                for shape, make in shapes.items():
                    result = check(make(pairs))
                    if getattr(result, "reason", None) is not Reason.DUPLICATE_HEADER or name not in result.detail:
                        wrong.append((name, again, shape, result))
        for join in (",", ", ", ";"):  # as a server may join them
            assert_refused(check({**headers, name: join.join([value] * 2)}), Reason.BAD_FORMAT)
            assert_refused(check({**headers, name: value + join}), Reason.BAD_FORMAT)
    assert wrong == []


def test_other_headers_may_come_twice():
    pairs = [("Via", "a"), *signed().items(), ("Via", "b"), ("MD5 ", "x"), (" CurTime", "x"), ("", ""), (b"\xff", b"\xff")]
    assert isinstance(check(pairs), Verified)


# ------------------------------------------------------------------------------------- three forgeries


@settings(deadline=None, max_examples=60)
@given(body=st.binary(max_size=300))
def test_a_captured_triple_vouches_for_no_other_body(body):
    """Followed to the letter, the interface's steps never look at the body."""
    assume(body != BODY)
    captured = signed()
    assert captured["CheckSum"] == own_sum(captured["MD5"], captured["CurTime"])
    assert_refused(check(captured, body), Reason.BODY_MISMATCH)
    assert_refused(check({**captured, "MD5": digest_of(body)}, body), Reason.CHECKSUM_MISMATCH)


def test_digits_cannot_be_shifted_between_md5_and_curtime():
    """The parts are joined without separators: the sum stays right, wherever they are cut."""
    body = next(text for number in range(100) if digest_of(text := b"%d" % number)[-1].isdigit())
    captured = signed(body)
    joined = captured["MD5"] + captured["CurTime"]
    accepted = []
    for cut in range(1, 46):
        digest, moment = joined[:cut], joined[cut:]
        assert own_sum(digest, moment) == captured["CheckSum"]
        result = check({"MD5": digest, "CurTime": moment, "CheckSum": captured["CheckSum"]}, body, policy=ANY_TIME)
        if isinstance(result, Verified):
            accepted.append(cut)
        else:
            assert_refused(result, Reason.BAD_FORMAT)
    assert accepted == [32]


def test_the_extension_of_md5_is_md5():
    """The helper's own arithmetic, against hashlib."""
    for length in (0, 1, 55, 56, 63, 64, 65, 109, 119, 120, 200):
        text = bytes(range(256))[:length]
        assert digest_from(START, text) == md5(text).hexdigest()
        glue, digest = extended(md5(text).hexdigest(), length, b"9999999999999")
        assert digest == md5(text + glue).hexdigest()


LENGTH = len(APP_ID + TOKEN) + 32 + 13  # no secret: identifiers and tokens have 32 characters


def test_the_sum_cannot_be_extended_through_curtime():
    captured = signed()
    for suffix in (b"", b"9", b"9999999999999", b"0" * 64):
        glue, checksum = extended(captured["CheckSum"], LENGTH, suffix)
        moment = captured["CurTime"].encode() + glue
        # the forger's sum is right, and was made without the token
        assert checksum == md5(f"{APP_ID}{TOKEN}{captured['MD5']}".encode() + moment).hexdigest()
        pairs = [(b"MD5", captured["MD5"].encode()), (b"CurTime", moment), (b"CheckSum", checksum.encode())]
        texts = {name.decode(): value.decode("latin-1") for name, value in pairs}
        for headers in (pairs, dict(pairs), texts):
            assert_refused(check(headers, policy=ANY_TIME), Reason.BAD_FORMAT)


def test_the_sum_cannot_be_extended_through_md5_with_a_fresh_curtime_behind():
    captured = signed()
    fresh = str(int(MILLISECONDS) + 86_400_000)
    glue, checksum = extended(captured["CheckSum"], LENGTH, fresh.encode())
    digest = (captured["MD5"] + captured["CurTime"]).encode() + glue[: -len(fresh)]
    assert checksum == md5(f"{APP_ID}{TOKEN}".encode() + digest + fresh.encode()).hexdigest()
    pairs = [(b"md5", digest), (b"curtime", fresh.encode()), (b"checksum", checksum.encode())]
    assert_refused(check(pairs, now=NOW + timedelta(days=1)), Reason.BAD_FORMAT)


# ------------------------------------------------------------------------------------ each header's form

FULL_WIDTH = {ord(digit): 0xFF10 + int(digit) for digit in "0123456789"}
BEFORE = ["\n", " ", "g", "+", "-", "0x", "\u0663", "\uff13", "²"]
BEHIND = ["\n", "\r", " ", "\t", "0", "\0", "\udfff", ";", "."]


def in_another_form(text):
    """Yield what looks like a header's value, and is none."""
    yield from ("", text[1:], text * 2, text * 100_000, f'"{text}"', text[0] + "_" + text[2:])
    yield from (text.translate(ARABIC) + "\u0660", text.translate(FULL_WIDTH) + "\uff10")
    yield from (each + text for each in BEFORE[:2])
    yield from (each + text[len(each) :] for each in BEFORE[2:])
    yield from (text + each for each in BEHIND)
    yield from (text[:-1] + each for each in (".", "\0", "\ud800"))


def test_a_header_of_another_form_is_refused_although_the_sum_is_right():
    wrong = []
    for name in signed():
        for value in in_another_form(signed()[name]):
            headers = {**signed(), name: value}
            if name != "CheckSum":
                told = (APP_ID + TOKEN + headers["MD5"] + headers["CurTime"]).encode("utf-8", "surrogatepass")
                headers["CheckSum"] = md5(told).hexdigest()
            raw = {each: text.encode("utf-8", "surrogatepass") for each, text in headers.items()}
            for shown in (headers, raw, list(raw.items())):
                result = check(shown, policy=ANY_TIME)
                if getattr(result, "reason", None) is not Reason.BAD_FORMAT or name not in result.detail:
                    wrong.append((name, value[:50], result))
    assert wrong == []


def test_seconds_are_told_from_milliseconds():
    for moment in ("1767323045", "0000000000", "9999999999"):
        assert_refused(check(triple(digest_of(), moment)), Reason.SECONDS_NOT_MILLISECONDS)
    for moment in ("176732304", "17673230455", "176732304500", "17673230450000", "1767323045\n", "176732304\u0665"):
        assert_refused(check(triple(digest_of(), moment)), Reason.BAD_FORMAT)


def test_a_content_encoding_is_refused():
    for encoding in ("gzip", "GZIP", "br", "deflate", "identity, gzip", "gzip, identity", "x", "identity;"):
        assert in_any_shape({**signed(), "Content-Encoding": encoding}, Reason.UNSUPPORTED_ENCODING)[0] == {}
    for encoding in ("", "identity", "IDENTITY", " identity "):
        assert isinstance(check({**signed(), "content-encoding": encoding}), Verified)


# --------------------------------------------------------------------------------------------- the time


def later(seconds):
    return NOW + timedelta(milliseconds=round(seconds * 1000))


def test_inside_the_window_it_is_accepted_and_outside_refused():
    for seconds in (0, 0.001, 299.999, 300, -0.001, -59.999, -60):
        result = check(signed(), now=later(seconds))
        assert isinstance(result, Verified)
        assert (result.age, result.cur_time) == (seconds, int(MILLISECONDS))
    stale, future = Reason.STALE, Reason.FUTURE
    for seconds, reason in ((300.001, stale), (86_400, stale), (-60.001, future), (-86_400, future)):
        result = check(signed(), now=later(seconds))
        assert_refused(result, reason)
        assert result.detail.startswith(f"it is {abs(seconds):.3f} s ")
        assert result.age == seconds


def test_the_window_is_the_policys():
    narrow = Policy(back=0.5, ahead=0.25)
    for seconds, accepted in ((0.5, True), (0.501, False), (-0.25, True), (-0.251, False)):
        assert isinstance(check(signed(), now=later(seconds), policy=narrow), Verified) is accepted
    assert isinstance(check(signed(), now=later(1e9), policy=Policy(back=None)), Verified)
    assert_refused(check(signed(), now=later(-1e6), policy=Policy(back=None)), Reason.FUTURE)
    assert isinstance(check(signed(), now=later(-1e6), policy=Policy(ahead=None)), Verified)
    assert_refused(check(signed(), now=later(1e6), policy=Policy(ahead=None)), Reason.STALE)
    for moment in ("0000000000000", "9999999999999"):
        assert isinstance(check(triple(digest_of(), moment), policy=ANY_TIME), Verified)


def test_a_python_that_has_no_md5_for_security_signs_too(monkeypatch):
    """As builds for FIPS 140: there MD5 is only for what needs no security."""

    def strict(data=b"", *, usedforsecurity=True):
        assert not usedforsecurity, "disabled for FIPS"
        return md5(data, usedforsecurity=False)

    expected = signed()
    monkeypatch.setattr(signature, "md5", strict)
    assert signed() == expected
    assert isinstance(check(signed(), now=NOW), Verified)
    monkeypatch.setattr(hashlib, "md5", strict)
    spec = importlib.util.find_spec(signature.__name__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # nor is it needed to import the module


def test_what_is_not_authentic_is_never_called_stale():
    old = later(1e6)
    assert_refused(check(signed(by=credentials(token=OLD_TOKEN)), now=old), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(), b"other", now=old), Reason.BODY_MISMATCH)
    assert_refused(check(signed(), now=old), Reason.STALE)


def test_no_number_turns_a_check_off():
    for name in ("back", "ahead", "max_body"):
        for value in (0, 0.0, -1, True, False, "1", float("nan"), float("inf"), float("-inf"), (), b""):
            with pytest.raises(InvalidRequest, match=name) as caught:
                pytest.fail(f"{Policy(**{name: value})}")
            assert caught.value.field == name


class Nowhere(tzinfo):
    """A zone that says nothing: a time in it is as naive as one without."""

    def utcoffset(self, _):
        return None


NAIVE = [datetime(2026, 1, 2, 3, 4, 5), datetime(2026, 1, 2, 3, 4, 5, tzinfo=Nowhere())]  # noqa: DTZ001  # meant


def test_a_time_without_a_zone_is_refused_and_of_others_the_zone_does_not_matter():
    for now in NAIVE:
        for use in (partial(signed, now=now), partial(check, signed(), now=now), partial(check, {}, None, now=now)):
            with pytest.raises(InvalidRequest, match="time zone") as caught:
                use()
            assert caught.value.field == "now"
    for zone in (CHINA, timezone(timedelta(hours=-12)), timezone(timedelta(hours=5, minutes=45, seconds=3))):
        assert check(signed(), now=NOW.astimezone(zone)) == check(signed())
        assert signed(now=NOW.astimezone(zone)) == signed()


# --------------------------------------------------------------------------------------------- the body


def test_the_limit_of_the_body_is_the_last_length_accepted():
    for limit, length in ((3, 3), (1, 0), (1, 1), (1024 * 1024, 1024 * 1024)):
        body = b"x" * length
        assert isinstance(check(signed(body), body, policy=Policy(max_body=limit)), Verified)
    for limit, length in ((3, 4), (1, 2), (1024 * 1024, 1024 * 1024 + 1)):
        body = b"x" * length
        result = check(signed(body), body, policy=Policy(max_body=limit))
        assert_refused(result, Reason.TOO_LARGE)
        assert f"{length} bytes, the limit is {limit}" in result.detail
    assert_refused(check(signed(body), body), Reason.TOO_LARGE)  # the default, of a mebibyte
    assert isinstance(check(signed(body), body, policy=Policy(max_body=None)), Verified)


def test_a_body_that_is_too_large_is_not_hashed(monkeypatch):
    def never(*_, **__):
        pytest.fail("hashed")

    headers = signed(b"1234")
    monkeypatch.setattr(signature, "md5", never)
    assert_refused(verify(headers, b"1234", credentials=MINE, now=NOW, policy=Policy(max_body=3)), Reason.TOO_LARGE)


NO_BYTES = ["{}", "", {}, {"eventType": "1"}, None, 0, [], (), bytearray(b"{}"), memoryview(b"{}"), object()]


def test_a_body_that_is_no_bytes_is_refused_with_the_reason():
    for body in NO_BYTES:
        result = check(signed(b"{}"), body)
        assert_refused(result, Reason.BAD_FORMAT)
        for words in ("raw bytes", type(body).__name__, "a different digest"):
            assert words in result.detail
        with pytest.raises(InvalidRequest, match="raw bytes") as refused:
            signed(body)
        assert refused.value.field == "body"


# ------------------------------------------------------------------------------------- several tokens

CURRENT, OLD, OLDER = credentials(), credentials(token=OLD_TOKEN), credentials(token=OLDER_TOKEN)
OTHER = credentials(OTHER_APP, OTHER_TOKEN)
ALL = (CURRENT, OTHER, OLD, OLDER)


def test_the_result_names_the_key():
    table = [
        (CURRENT, Key(APP_ID, 0), True, APP_ID),
        (OTHER, Key(OTHER_APP, 0), True, OTHER_APP),
        (OLD, Key(APP_ID, 1), False, f"{APP_ID} (older token 1)"),
        (OLDER, Key(APP_ID, 2), False, f"{APP_ID} (older token 2)"),
    ]
    keys = Keys(*ALL)
    for by, key, current, shown in table:
        for several in (ALL, list(ALL), keys, iter(ALL)):
            found = check(signed(by=by), by=several).key
            assert (found, found.current, str(found)) == (key, current, shown)


def test_what_was_signed_with_none_of_them_is_refused():
    headers = signed(by=OLD)
    assert_refused(check(headers, by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(by=credentials(OTHER_APP, TOKEN)), by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(by=credentials(APP_ID, OTHER_TOKEN)), by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)


def test_at_least_one_token_is_needed():
    for use in (Keys, lambda: keys_of([]), lambda: check(signed(), by=())):
        with pytest.raises(InvalidRequest, match="at least one") as caught:
            use()
        assert caught.value.field == "credentials"


# --------------------------------------------------------------------------------- comparing in one time


@pytest.fixture
def compared(monkeypatch):
    calls = []

    def compare(one, other):
        calls.append((one, other))
        return one == other

    monkeypatch.setattr(signature, "compare_digest", compare)
    return calls


WRONG = {**signed(), "CheckSum": "0" * 32}
MISMATCHES = {
    "right": (signed(), BODY),
    "wrong body": (signed(), b"other"),
    "wrong checksum": (WRONG, BODY),
    "both wrong": (WRONG, b"other"),
    "stale": (signed(now=later(-1000)), BODY),
}


@pytest.mark.parametrize("by", [(CURRENT,), (CURRENT, OLD, OTHER), (OLD, OTHER, CURRENT)], ids=["1", "3, first", "3, last"])
def test_both_comparisons_are_always_made_and_with_all_keys(compared, by):
    for headers, body in MISMATCHES.values():
        compared.clear()
        verify(headers, body, credentials=by, now=NOW)
        assert len(compared) == 1 + len(by)
        assert all(type(one) is type(other) is bytes and len(one) == len(other) == 32 for one, other in compared)
        assert sum(other == headers["CheckSum"].lower().encode() for _, other in compared) == len(by)
        assert sum(one == md5(body).hexdigest().encode() for one, _ in compared) == 1


REASONS = {
    Reason.MISSING_HEADER: lambda: check({}),
    Reason.DUPLICATE_HEADER: lambda: check([*signed().items(), *signed().items()]),
    Reason.BAD_FORMAT: lambda: check({**signed(), "MD5": "x"}),
    Reason.BODY_MISMATCH: lambda: check(signed(), b""),
    Reason.CHECKSUM_MISMATCH: lambda: check(WRONG),
    Reason.STALE: lambda: check(signed(), now=later(301)),
    Reason.FUTURE: lambda: check(signed(), now=later(-61)),
    Reason.SECONDS_NOT_MILLISECONDS: lambda: check({**signed(), "CurTime": "1767323045"}),
    Reason.TOO_LARGE: lambda: check(signed(), policy=Policy(max_body=1)),
    Reason.UNSUPPORTED_ENCODING: lambda: check({**signed(), "Content-Encoding": "gzip"}),
}


def test_every_reason_is_reached():
    for reason, refuse in REASONS.items():
        assert_refused(refuse(), reason)
        assert reason.value == reason.name.lower()  # it stands in logs, metrics and files
    body = b'{"fromAccount":"%b#1001"}' % OTHER_APP.encode()
    assert delivery_of(body, app_id=APP_ID, received=NOW).problem.startswith(f"{Reason.APP_MISMATCH.value}:")
    assert {*REASONS, Reason.APP_MISMATCH} == set(Reason)


# ------------------------------------------------------------------------------------ no token anywhere


def assert_no_token(shown):
    shown = shown if isinstance(shown, bytes) else shown.encode("utf-8", "surrogateescape")
    for token in TOKENS:
        assert token.encode() not in shown
        assert token.upper().encode() not in shown


def test_results_are_values_and_show_no_token(caplog):
    verified = [lambda: check(signed()), lambda: check(signed(by=OLD), by=ALL)]
    for make in (*REASONS.values(), *verified):
        result = make()
        assert result == make() == copy.copy(result) == copy.deepcopy(result) == pickle.loads(pickle.dumps(result))
        assert hash(result) == hash(make())
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("app").info("%s %r", result, result)
        for shown in (repr(result), str(result), caplog.text, repr(attrs.asdict(result)), pickle.dumps(result)):
            assert_no_token(shown)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            result.detail = ""


def broken_md5(data=b"", *, usedforsecurity=True):
    if len(data) in (len(BODY), 0):
        return md5(data, usedforsecurity=usedforsecurity)
    reason = "no MD5 on this machine"
    raise ValueError(reason)


FAILING = {
    "a time without a zone, signing": lambda: signed(now=NAIVE[0]),
    "a time without a zone, verifying": lambda: check(signed(), now=NAIVE[0]),
    "no bytes": lambda: signed("{}"),
    "credentials that are none": lambda: check(signed(), by=[CURRENT, None]),
    "keys of what is none": lambda: Keys(CURRENT, "token"),
    "no MD5, signing": signed,
    "no MD5, verifying": lambda: check(WRONG, by=[credentials(token=OTHER_TOKEN)]),
}


@pytest.mark.parametrize(("name", "use"), FAILING.items(), ids=FAILING)
def test_a_traceback_with_its_locals_shows_no_token(monkeypatch, name, use):
    """Error trackers record the locals of every frame; those of rbim's own must not hold it."""
    if name.startswith("no MD5"):
        monkeypatch.setattr(signature, "md5", broken_md5)
        signature._keys.cache_clear()
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        use()
    stack = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
    inside = [frame for frame in stack if Path(frame.filename).is_relative_to(PACKAGE)]
    assert inside
    assert_no_token("".join(str(frame.locals) for frame in inside))
    assert_no_token(str(caught.value))
