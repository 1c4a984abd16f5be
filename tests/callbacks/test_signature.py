"""The signature of a delivery: sums that other programs worked out, forgeries, and whatever else may come instead of one."""

import copy
import hashlib
import importlib.util
import logging
import pickle
import subprocess
import sys
import traceback
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from hashlib import md5
from pathlib import Path
from types import MappingProxyType

import attrs
import httpx
import pytest
from django.http.request import HttpHeaders
from hypothesis import assume, example, given, settings, strategies as st
from multidict import CIMultiDict, CIMultiDictProxy, MultiDict
from starlette.datastructures import Headers as StarletteHeaders

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
from rbim import CHINA, CallbackRejected, InvalidRequest
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


@pytest.mark.parametrize(("text", "now", "moment"), VECTORS)
def test_what_is_signed_against_md5sum(text, now, moment):
    headers = sign(text.encode(), credentials=MINE, now=now)
    digest = md5sum(text).upper()
    assert headers == {"MD5": digest, "CurTime": moment, "CheckSum": md5sum(APP_ID + TOKEN + digest + moment).upper()}
    assert check(headers, text.encode(), now=now) == Verified(
        key=Key(APP_ID, 0), age=pytest.approx(0, abs=0.001), cur_time=int(moment)
    )


def test_what_is_signed_against_values_written_down():
    """The first of those vectors, kept for machines without md5sum."""
    assert signed(b"{}") == {
        "MD5": "99914B932BD37A50B983C5E7C90AE93B",
        "CurTime": MILLISECONDS,
        "CheckSum": "8E2BAB9FA43D2638E5766404A69FD5CF",
    }


def test_the_sum_is_of_the_md5_header_as_it_stands_in_upper_case_as_in_lower_case():
    upper, lower = md5sum(BODY).upper(), md5sum(BODY)
    sums = {digest: md5sum(APP_ID + TOKEN + digest + MILLISECONDS) for digest in (upper, lower)}
    assert sums[upper] != sums[lower]
    for digest, other in ((upper, lower), (lower, upper)):
        headers = {"MD5": digest, "CurTime": MILLISECONDS, "CheckSum": sums[digest]}
        assert isinstance(check(headers), Verified)
        assert_refused(check({**headers, "CheckSum": sums[other]}), Reason.CHECKSUM_MISMATCH)


def test_the_platforms_samples_of_mixed_case_verify_as_well():
    digest = "".join(letter.upper() if place % 2 else letter for place, letter in enumerate(digest_of().lower()))
    headers = triple(digest, MILLISECONDS)
    assert isinstance(check(headers), Verified)
    assert isinstance(check({**headers, "CheckSum": headers["CheckSum"].swapcase()}), Verified)


def test_a_signed_time_is_the_whole_millisecond_that_has_begun():
    at = NOW + timedelta(microseconds=1_999)
    assert signed(now=at)["CurTime"] == "1767323045001"
    assert signed(now=at.astimezone(timezone(timedelta(hours=-11))))["CurTime"] == "1767323045001"


@pytest.mark.parametrize("year", [2001, 2004, 2026, 2038, 2200])
def test_every_millisecond_is_signed_as_itself(year):
    start = datetime(year, 12, 1, tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    wrong = []
    for thousandth in range(1000):
        now = start + timedelta(milliseconds=thousandth)
        if signed(b"", now)["CurTime"] != str((now - epoch) // timedelta(milliseconds=1)):
            wrong.append(thousandth)
    assert wrong == []


# --------------------------------------------------------------------------- what was signed verifies

MOMENTS = st.datetimes(datetime(2001, 9, 10), datetime(2286, 11, 20), timezones=st.just(UTC))  # noqa: DTZ001  # st adds it
BODIES = st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))


@settings(deadline=None)
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


def as_environ(headers):
    return {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}


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
    "starlette": StarletteHeaders,
    "starlette, raw": lambda headers: StarletteHeaders(raw=[(name.lower(), value) for name, value in encoded(headers)]),
    "multidict": MultiDict,
    "multidict without case": CIMultiDict,
    "aiohttp's proxy": lambda headers: CIMultiDictProxy(CIMultiDict(headers)),
    "django": lambda headers: HttpHeaders(as_environ(headers)),
    "httpx": httpx.Headers,
}
shapes = pytest.mark.parametrize("shape", [pytest.param(shape, id=name) for name, shape in SHAPES.items()])


@shapes
def test_headers_may_have_any_shape(shape):
    around = {"Host": "example.com", "Content-Type": "application/json", "X-MD5": "x", "Check-Sum": "x", "MD5-": "x"}
    assert isinstance(check(shape(signed())), Verified)
    assert isinstance(check(shape({**around, **signed()})), Verified)
    assert isinstance(check(shape({**signed(), **around})), Verified)


@shapes
def test_a_forgery_is_refused_in_any_shape(shape):
    assert_refused(check(shape(signed(by=credentials(token=OLD_TOKEN)))), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(shape(signed()), BODY + b" "), Reason.BODY_MISMATCH)
    assert_refused(check(shape({**signed(), "CurTime": MILLISECONDS + "\n"})), Reason.BAD_FORMAT)


@shapes
@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
def test_a_missing_header_is_named_in_any_shape(shape, name):
    headers = {each: value for each, value in signed().items() if each != name}
    result = check(shape(headers))
    assert_refused(result, Reason.MISSING_HEADER)
    assert name in result.detail


@settings(deadline=None)
@given(order=st.permutations(["CheckSum", "MD5", "CurTime", "Host", "Accept"]), cases=st.lists(st.booleans(), min_size=40))
def test_order_and_case_of_header_names_do_not_matter(order, cases):
    told = {"Host": "example.com", "Accept": "*/*", **signed()}
    letters = iter(cases)
    pairs = [
        ("".join(letter.upper() if next(letters, False) else letter.lower() for letter in name), told[name])
        for name in order
    ]
    assert isinstance(check(pairs), Verified)
    assert isinstance(check(dict(pairs)), Verified)


# ------------------------------------------------------------------------------------ any other byte


@settings(deadline=None)
@given(body=st.binary(min_size=1, max_size=200), place=st.integers(0, 199), byte=st.integers(0, 255))
def test_any_other_byte_of_the_body_is_refused(body, place, byte):
    place %= len(body)
    assume(body[place] != byte)
    changed = body[:place] + bytes([byte]) + body[place + 1 :]
    assert_refused(check(signed(body), changed), Reason.BODY_MISMATCH)


@settings(deadline=None)
@given(body=st.binary(max_size=100), more=st.binary(min_size=1, max_size=70))
def test_more_and_less_of_the_body_is_refused(body, more):
    assert_refused(check(signed(body), body + more), Reason.BODY_MISMATCH)
    assert_refused(check(signed(body + more), body), Reason.BODY_MISMATCH)
    assume(more + body != body + more)
    assert_refused(check(signed(body + more), more + body), Reason.BODY_MISMATCH)


@settings(deadline=None, max_examples=500)
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


@settings(deadline=None)
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


@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
@pytest.mark.parametrize("other", [True, False], ids=["another value", "the same value"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("shape", [list, MultiDict, CIMultiDict, "starlette", "bytes", "two cases in a dict"])
def test_a_header_that_came_twice_is_refused(name, other, first, shape):
    headers = signed()
    value = headers[name].replace("0", "1") if other else headers[name]
    twice = (name.lower(), value)
    pairs = [twice, *headers.items()] if first else [*headers.items(), twice]
    if shape == "starlette":
        told = StarletteHeaders(raw=[(each.lower().encode(), text.encode()) for each, text in pairs])
    elif shape == "bytes":
        told = [(each.encode() if place % 2 else each, text.encode()) for place, (each, text) in enumerate(pairs)]
    else:
        told = dict(pairs) if shape == "two cases in a dict" else shape(pairs)
    result = check(told)
    assert_refused(result, Reason.DUPLICATE_HEADER)
    assert name in result.detail


@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
@pytest.mark.parametrize("join", [",", ", ", ";"])
def test_two_values_that_a_server_joined_are_refused(name, join):
    headers = signed()
    assert_refused(check({**headers, name: join.join([headers[name]] * 2)}), Reason.BAD_FORMAT)
    assert_refused(check({**headers, name: headers[name] + join}), Reason.BAD_FORMAT)


def test_other_headers_may_come_twice():
    pairs = [("Via", "a"), *signed().items(), ("Via", "b"), ("MD5 ", "x"), (" CurTime", "x"), ("", ""), (b"\xff", b"\xff")]
    assert isinstance(check(pairs), Verified)


# ------------------------------------------------------------------------------------- three forgeries


@settings(deadline=None)
@given(body=st.binary(max_size=300))
def test_a_captured_triple_vouches_for_no_other_body(body):
    """Followed to the letter, the interface's steps never look at the body."""
    assume(body != BODY)
    captured = signed()
    assert captured["CheckSum"] == own_sum(captured["MD5"], captured["CurTime"])
    assert_refused(check(captured, body), Reason.BODY_MISMATCH)
    assert_refused(check({**captured, "MD5": digest_of(body)}, body), Reason.CHECKSUM_MISMATCH)


@pytest.mark.parametrize("shift", range(-31, 14))
def test_digits_cannot_be_shifted_between_md5_and_curtime(shift):
    """The parts are joined without separators: the sum stays right, wherever they are cut."""
    body = next(text for number in range(100) if digest_of(text := b"%d" % number)[-1].isdigit())
    captured = signed(body)
    joined = captured["MD5"] + captured["CurTime"]
    digest, moment = joined[: 32 + shift], joined[32 + shift :]
    assert own_sum(digest, moment) == captured["CheckSum"]
    result = check({"MD5": digest, "CurTime": moment, "CheckSum": captured["CheckSum"]}, body, policy=ANY_TIME)
    if shift == 0:
        assert isinstance(result, Verified)
    else:
        assert_refused(result, Reason.BAD_FORMAT)


def test_the_extension_of_md5_is_md5():
    """The helper's own arithmetic, against hashlib."""
    for length in (0, 1, 55, 56, 63, 64, 65, 109, 119, 120, 200):
        text = bytes(range(256))[:length]
        assert digest_from(START, text) == md5(text).hexdigest()
        glue, digest = extended(md5(text).hexdigest(), length, b"9999999999999")
        assert digest == md5(text + glue).hexdigest()


LENGTH = len(APP_ID + TOKEN) + 32 + 13  # no secret: identifiers and tokens have 32 characters


@pytest.mark.parametrize("suffix", [b"", b"9", b"9999999999999", b"0" * 64])
def test_the_sum_cannot_be_extended_through_curtime(suffix):
    captured = signed()
    glue, checksum = extended(captured["CheckSum"], LENGTH, suffix)
    moment = captured["CurTime"].encode() + glue
    # the forger's sum is right, and was made without the token
    assert checksum == md5(f"{APP_ID}{TOKEN}{captured['MD5']}".encode() + moment).hexdigest()
    pairs = [(b"MD5", captured["MD5"].encode()), (b"CurTime", moment), (b"CheckSum", checksum.encode())]
    assert_refused(check(pairs, policy=ANY_TIME), Reason.BAD_FORMAT)
    assert_refused(check(dict(pairs), policy=ANY_TIME), Reason.BAD_FORMAT)
    texts = {name.decode(): value.decode("latin-1") for name, value in pairs}
    assert_refused(check(texts, policy=ANY_TIME), Reason.BAD_FORMAT)


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
ODD = {
    "empty": lambda _: "",
    "a newline behind": lambda text: text + "\n",
    "a carriage return behind": lambda text: text + "\r",
    "a newline before": lambda text: "\n" + text,
    "a space behind": lambda text: text + " ",
    "a space before": lambda text: " " + text,
    "a tab behind": lambda text: text + "\t",
    "one too few": lambda text: text[1:],
    "one too many": lambda text: text + "0",
    "twice": lambda text: text * 2,
    "a plus": lambda text: "+" + text[1:],
    "a minus": lambda text: "-" + text[1:],
    "an underscore": lambda text: text[0] + "_" + text[2:],
    "a point": lambda text: text[:-1] + ".",
    "0x": lambda text: "0x" + text[2:],
    "no hexadecimal digit": lambda text: "g" + text[1:],
    "NUL": lambda text: text[:-1] + "\0",
    "NUL behind": lambda text: text + "\0",
    "half a character": lambda text: text[:-1] + "\ud800",
    "half a character behind": lambda text: text + "\udfff",
    "an Arabic-Indic digit": lambda text: "\u0663" + text[1:],
    "Arabic-Indic digits": lambda text: text.translate(ARABIC) + "\u0660",
    "a full-width digit": lambda text: "\uff13" + text[1:],
    "full-width digits": lambda text: text.translate(FULL_WIDTH) + "\uff10",
    "a superscript": lambda text: "²" + text[1:],
    "quotes": lambda text: f'"{text}"',
    "a semicolon behind": lambda text: text + ";",
    "huge": lambda text: text * 100_000,
}


@pytest.mark.parametrize("name", ["CheckSum", "MD5", "CurTime"])
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in ODD.items()])
def test_a_header_of_another_form_is_refused_although_the_sum_is_right(name, make):
    headers = signed()
    headers[name] = make(headers[name])
    if name != "CheckSum":
        told = (APP_ID + TOKEN + headers["MD5"] + headers["CurTime"]).encode("utf-8", "surrogatepass")
        headers["CheckSum"] = md5(told).hexdigest()
    results = [check(headers, policy=ANY_TIME)]
    raw = {each: value.encode("utf-8", "surrogatepass") for each, value in headers.items()}
    results += [check(raw, policy=ANY_TIME), check(list(raw.items()), policy=ANY_TIME)]
    for result in results:
        assert_refused(result, Reason.BAD_FORMAT)
        assert name in result.detail


@pytest.mark.parametrize("moment", ["1767323045", "0000000000", "9999999999"])
def test_seconds_are_told_from_milliseconds(moment):
    assert_refused(check(triple(digest_of(), moment)), Reason.SECONDS_NOT_MILLISECONDS)


@pytest.mark.parametrize(
    "moment", ["176732304", "17673230455", "176732304500", "17673230450000", "1767323045\n", "176732304\u0665", "-767323045"]
)
def test_ten_digits_are_seconds_and_nothing_else_is(moment):
    assert_refused(check(triple(digest_of(), moment)), Reason.BAD_FORMAT)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "identity, gzip", "gzip, identity", "x", "identity;"])
@shapes
def test_a_content_encoding_is_refused(shape, encoding):
    assert_refused(check(shape({**signed(), "Content-Encoding": encoding})), Reason.UNSUPPORTED_ENCODING)


@pytest.mark.parametrize("encoding", ["", "identity", "IDENTITY", " identity "])
def test_no_content_encoding_in_so_many_words_is_accepted(encoding):
    assert isinstance(check({**signed(), "content-encoding": encoding}), Verified)


def test_of_two_content_encodings_both_count():
    pairs = [*signed().items(), ("Content-Encoding", "identity")]
    assert isinstance(check(pairs), Verified)
    assert_refused(check([*pairs, ("content-encoding", "gzip")]), Reason.UNSUPPORTED_ENCODING)
    assert_refused(check([("content-encoding", "gzip"), *pairs]), Reason.UNSUPPORTED_ENCODING)


# --------------------------------------------------------------------------------------------- the time


def later(seconds):
    return NOW + timedelta(milliseconds=round(seconds * 1000))


@pytest.mark.parametrize("seconds", [0, 0.001, 299.999, 300, -0.001, -59.999, -60])
def test_inside_the_window_it_is_accepted(seconds):
    result = check(signed(), now=later(seconds))
    assert isinstance(result, Verified)
    assert result.age == seconds
    assert result.cur_time == int(MILLISECONDS)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(300.001, Reason.STALE), (86_400, Reason.STALE), (-60.001, Reason.FUTURE), (-86_400, Reason.FUTURE)],
)
def test_outside_the_window_it_is_refused(seconds, reason):
    result = check(signed(), now=later(seconds))
    assert_refused(result, reason)
    assert f"{abs(seconds):.3f}" in result.detail


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


def test_a_delivery_out_of_time_is_refused_with_its_distance_and_the_limit():
    assert check(signed(), now=later(301.5)).detail == "it is 301.500 s old, the limit is 300 s"
    assert check(signed(), now=later(-61.25)).detail == "it is 61.250 s ahead, the limit is 60 s"
    assert (check(signed(), now=later(301.5)).age, check(signed(), now=later(-61.25)).age) == (301.5, -61.25)


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


def test_a_body_may_be_of_a_subclass_of_bytes():
    class Body(bytes):
        pass

    assert isinstance(check(signed(BODY), Body(BODY)), Verified)
    assert_refused(check(signed(BODY), Body(BODY + b" ")), Reason.BODY_MISMATCH)


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_has_the_word_of_its_name(reason):
    """They stand in logs, metrics and files."""
    assert reason.value == reason.name.lower()


def test_what_is_not_authentic_is_never_called_stale():
    old = later(1e6)
    assert_refused(check(signed(by=credentials(token=OLD_TOKEN)), now=old), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(), b"other", now=old), Reason.BODY_MISMATCH)
    assert_refused(check(signed(), now=old), Reason.STALE)


@pytest.mark.parametrize("name", ["back", "ahead", "max_body"])
@pytest.mark.parametrize("value", [0, 0.0, -1, True, False, "1", float("nan"), float("-inf"), (), b""])
def test_no_number_turns_a_check_off(name, value):
    with pytest.raises(InvalidRequest, match=name) as caught:
        Policy(**{name: value})
    assert caught.value.field == name


def test_a_policy_is_frozen_and_by_keyword():
    assert Policy() == Policy(back=300, ahead=60, max_body=1024 * 1024)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Policy().back = None
    with pytest.raises(TypeError):
        Policy(1.0)


class Nowhere(tzinfo):
    """A zone that says nothing: a time in it is as naive as one without."""

    def utcoffset(self, _):
        return None


NAIVE = [datetime(2026, 1, 2, 3, 4, 5), datetime(2026, 1, 2, 3, 4, 5, tzinfo=Nowhere())]  # noqa: DTZ001  # meant


@pytest.mark.parametrize("now", NAIVE, ids=["no zone", "a zone without an offset"])
def test_a_time_without_a_zone_is_refused(now):
    for use in (lambda: signed(now=now), lambda: check(signed(), now=now), lambda: check({}, None, now=now)):
        with pytest.raises(InvalidRequest, match="time zone") as caught:
            use()
        assert caught.value.field == "now"


@pytest.mark.parametrize(
    "zone", [CHINA, timezone(timedelta(hours=-12)), timezone(timedelta(hours=5, minutes=45, seconds=3))]
)
def test_the_zone_of_now_does_not_matter(zone):
    assert check(signed(), now=NOW.astimezone(zone)) == check(signed())
    assert signed(now=NOW.astimezone(zone)) == signed()


# --------------------------------------------------------------------------------------------- the body


@pytest.mark.parametrize(
    ("limit", "length", "accepted"), [(3, 3, True), (3, 4, False), (1, 0, True), (1, 1, True), (1, 2, False)]
)
def test_the_limit_of_the_body_is_the_last_length_accepted(limit, length, accepted):
    body = b"x" * length
    result = check(signed(body), body, policy=Policy(max_body=limit))
    if accepted:
        assert isinstance(result, Verified)
    else:
        assert_refused(result, Reason.TOO_LARGE)
        assert f"{length} bytes, the limit is {limit}" in result.detail


def test_the_limit_is_a_mebibyte_unless_told():
    body = b"x" * (1024 * 1024 + 1)
    assert isinstance(check(signed(body[1:]), body[1:]), Verified)
    assert_refused(check(signed(body), body), Reason.TOO_LARGE)
    assert isinstance(check(signed(body), body, policy=Policy(max_body=None)), Verified)


def test_a_body_that_is_too_large_is_not_hashed(monkeypatch):
    def never(*_, **__):
        pytest.fail("hashed")

    headers = signed(b"1234")
    monkeypatch.setattr(signature, "md5", never)
    assert_refused(verify(headers, b"1234", credentials=MINE, now=NOW, policy=Policy(max_body=3)), Reason.TOO_LARGE)


NO_BYTES = ["{}", "", {}, {"eventType": "1"}, None, 0, [], (), bytearray(b"{}"), memoryview(b"{}"), object()]


@pytest.mark.parametrize("body", NO_BYTES, ids=lambda body: type(body).__name__)
def test_a_body_that_is_no_bytes_is_refused_with_the_reason(body):
    result = check(signed(b"{}"), body)
    assert_refused(result, Reason.BAD_FORMAT)
    assert "raw bytes" in result.detail
    assert type(body).__name__ in result.detail
    assert "a different digest" in result.detail
    with pytest.raises(CallbackRejected) as caught:
        raise result.error
    assert str(caught.value) == caught.value.message == result.detail
    assert caught.value.reason == "bad_format"
    with pytest.raises(InvalidRequest, match="raw bytes") as refused:
        signed(body)
    assert refused.value.field == "body"


# ------------------------------------------------------------------------------------- several tokens

CURRENT, OLD, OLDER = credentials(), credentials(token=OLD_TOKEN), credentials(token=OLDER_TOKEN)
OTHER = credentials(OTHER_APP, OTHER_TOKEN)
ALL = (CURRENT, OTHER, OLD, OLDER)


@pytest.mark.parametrize(
    ("by", "key", "current", "shown"),
    [
        (CURRENT, Key(APP_ID, 0), True, APP_ID),
        (OTHER, Key(OTHER_APP, 0), True, OTHER_APP),
        (OLD, Key(APP_ID, 1), False, f"{APP_ID} (older token 1)"),
        (OLDER, Key(APP_ID, 2), False, f"{APP_ID} (older token 2)"),
    ],
    ids=["current", "other application", "old", "older"],
)
@pytest.mark.parametrize("given", [ALL, list(ALL), Keys(*ALL), "iterator"], ids=lambda given: type(given).__name__)
def test_the_result_names_the_key(by, key, current, shown, given):
    result = check(signed(by=by), by=iter(ALL) if given == "iterator" else given)
    assert isinstance(result, Verified)
    assert result.key == key
    assert result.key.current is current
    assert str(result.key) == shown


def test_what_was_signed_with_none_of_them_is_refused():
    headers = signed(by=OLD)
    assert_refused(check(headers, by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(by=credentials(OTHER_APP, TOKEN)), by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)
    assert_refused(check(signed(by=credentials(APP_ID, OTHER_TOKEN)), by=[CURRENT, OTHER]), Reason.CHECKSUM_MISMATCH)


def test_the_same_token_given_twice_is_the_current_one():
    assert check(signed(), by=[CURRENT, CURRENT]).key == Key(APP_ID, 0)


def test_at_least_one_token_is_needed():
    for use in (Keys, lambda: keys_of([]), lambda: check(signed(), by=())):
        with pytest.raises(InvalidRequest, match="at least one") as caught:
            use()
        assert caught.value.field == "credentials"


def test_tokens_are_hashed_once():
    assert keys_of(CURRENT) is keys_of(credentials())
    assert keys_of([CURRENT, OLD]) is keys_of((CURRENT, OLD))
    assert keys_of([OLD, CURRENT]) is not keys_of([CURRENT, OLD])
    assert keys_of(credentials(token=OLD_TOKEN)) is not keys_of(CURRENT)
    keys = Keys(CURRENT)
    assert keys_of(keys) is keys


def test_keys_are_not_used_up():
    keys = Keys(*ALL)
    for _ in range(3):
        for by in ALL:
            assert isinstance(check(signed(by=by), by=keys), Verified)


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


@pytest.mark.parametrize(("headers", "body"), MISMATCHES.values(), ids=MISMATCHES)
@pytest.mark.parametrize("by", [(CURRENT,), (CURRENT, OLD, OTHER), (OLD, OTHER, CURRENT)], ids=["1", "3, first", "3, last"])
def test_both_comparisons_are_always_made_and_with_all_keys(compared, headers, body, by):
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
    body = b'{"fromAccount":"%b#1001"}' % OTHER_APP.encode()
    assert delivery_of(body, app_id=APP_ID, received=NOW).problem.startswith(f"{Reason.APP_MISMATCH.value}:")
    assert {*REASONS, Reason.APP_MISMATCH} == set(Reason)


# ------------------------------------------------------------------------------------ no token anywhere


def results():
    yield from (pytest.param(refuse, id=reason) for reason, refuse in REASONS.items())
    yield pytest.param(lambda: check(signed()), id="verified")
    yield pytest.param(lambda: check(signed(by=OLD), by=ALL), id="verified by an old token")


def assert_no_token(shown):
    shown = shown if isinstance(shown, bytes) else shown.encode("utf-8", "surrogateescape")
    for token in TOKENS:
        assert token.encode() not in shown
        assert token.upper().encode() not in shown


@pytest.mark.parametrize("make", list(results()))
def test_results_are_values_and_show_no_token(make, caplog):
    result = make()
    assert result == make()
    assert hash(result) == hash(make())
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("app").info("%s %r", result, result)
    for shown in (repr(result), str(result), f"{result}", caplog.text, repr(attrs.asdict(result)), repr(Keys(*ALL))):
        assert_no_token(shown)
    assert copy.copy(result) == copy.deepcopy(result) == result
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(result, protocol)
        assert_no_token(pickled)
        assert pickle.loads(pickled) == result
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        result.detail = ""


@pytest.mark.parametrize("make", [pytest.param(refuse, id=reason) for reason, refuse in REASONS.items()])
def test_the_exception_of_a_refusal_says_the_same_and_shows_no_token(make):
    result = make()
    with pytest.raises(CallbackRejected) as caught:
        raise result.error
    error = caught.value
    assert str(error) == result.detail
    assert error.reason == result.reason
    assert_no_token(repr(error) + str(vars(error)))
    assert_no_token("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CallbackRejected
    assert (str(again), again.reason, again.body) == (str(error), error.reason, b"")


def test_keys_are_not_pickled_and_show_no_token():
    keys = Keys(*ALL)
    assert repr(keys) == f"Keys({APP_ID}, {OTHER_APP}, {APP_ID} (older token 1), {APP_ID} (older token 2))"
    assert_no_token(repr(vars(keys)))
    with pytest.raises(TypeError):
        pickle.dumps(keys)


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


# ------------------------------------------------------------------------------------ where MD5 is forbidden

FORBIDDING = f"""
import hashlib
real = hashlib.md5
def md5(data=b"", *, usedforsecurity=True):
    if usedforsecurity:
        raise ValueError("[digital envelope routines] unsupported")
    return real(data, usedforsecurity=False)
hashlib.md5 = md5
def new(*_, **__):
    raise ValueError("not by name")
hashlib.new = new
from datetime import UTC, datetime
from rbim import Credentials
from rbim.callbacks.signature import Keys, sign, verify
mine, old = Credentials(app_id="{APP_ID}", app_token="{TOKEN}"), Credentials(app_id="{APP_ID}", app_token="{OLD_TOKEN}")
now = datetime(2026, 1, 2, tzinfo=UTC)
for by in (mine, old):
    print(verify(sign(b"{{}}", credentials=by, now=now), b"{{}}", credentials=Keys(mine, old), now=now))
print(verify(sign(b"{{}}", credentials=old, now=now), b"", credentials=mine, now=now).reason)
"""


def test_md5_says_each_time_that_it_is_not_for_security():
    """Where policy forbids MD5, this is what makes it available for what the platform made of it."""
    done = subprocess.run([sys.executable, "-c", FORBIDDING], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first.startswith("Verified(")
    assert "index=1" in second
    assert third == "checksum_mismatch"
