"""Operations to requests, responses to answers or errors: addresses, headers, statuses, codes."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from attrs import field, frozen
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.strategies import LEAST
from helpers.tables import each_row
from rbim import (
    CODES,
    AlreadyMember,
    ApiError,
    AuthenticationError,
    Code,
    Dialect,
    Grade,
    IntermediaryError,
    InvalidRequest,
    MembersShape,
    NotFound,
    NotMember,
    Outcome,
    ProtocolError,
    Request,
    Response,
    ServerTrouble,
    Throttled,
    TimestampExpired,
    Unanswered,
)
from rbim._support import json as rbim_json
from rbim.dialect import CHINA
from rbim.operations.base import Answer, operation, wire
from rbim.operations.call_tasks import CreateCallTask
from rbim.operations.groups import (
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    GroupOperation,
    GroupType,
    Invited,
    InviteJoinGroup,
    LogoutGroup,
    QueryGroupDetail,
    SearchPublicGroups,
    Success,
)
from rbim.wire.codec import MAX_VALUES, Codec, _retry_after, _unwritable
from rbim.wire.intermediaries import LOGIN


def make(base_url="https://host:8883", *, app_id="app", call_base_url=None, hooks=None, **choices):
    dialect = Dialect(**choices)
    return Codec(
        app_id=app_id, base_url=base_url, call_base_url=call_base_url, dialect=dialect, clock=FixedClock(), hooks=hooks
    )


DELETE = DeleteGroup(group_id="g1")
INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
CREATE = CreateGroup(name="a", type=GroupType.VIP)
TASK = CreateCallTask(**LEAST)


def decode(op=DELETE, status=200, body=b"", codec=None, **headers):
    return (codec or make()).decode(op, Response(status, headers, body))


def failure(*args, **options):
    with pytest.raises((ApiError, ProtocolError)) as caught:
        decode(*args, **options)
    return caught.value


# ------------------------------------------------------------------------------------ addresses


def test_the_dialect_chooses_version_and_spelling():
    assert make(api_version="2014-06-30").encode(DELETE).path == "/2014-06-30/Application/app/IM/Group/DeleteGroup"
    singular = make(singular_search=True).encode(SearchPublicGroups())
    assert singular.path == "/2013-12-26/Application/app/IM/Group/SearchPublicGroup"


@each_row("op", [DELETE, SearchPublicGroups()])
def test_an_application_id_stays_one_segment_of_the_path(op):
    path = make(app_id="a/../b?{api_version}").encode(op).path
    assert path.startswith("/2013-12-26/Application/a%2F..%2Fb%3F%7Bapi_version%7D/IM/Group/")


@each_row(
    "base_url, origin",
    [
        ("https://host:8883", "https://host:8883"),
        ("https://host:8883/", "https://host:8883"),
        ("https://host:8883//", "https://host:8883"),
        ("http://10.0.0.1/gateway/im/", "http://10.0.0.1/gateway/im"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("HTTPS://HOST", "HTTPS://HOST"),
    ],
)
def test_a_base_url_may_have_a_prefix_and_a_slash_too_many(base_url, origin):
    assert make(base_url).encode(DELETE).origin == origin


@each_row(
    "base_url",
    [
        " ",
        "host:8883",
        "//host",
        "ftp://host",
        "https://",
        "https://:8883",
        "https://host:port",
        "https://host:99999",
        "https://host:0",
        "https://[::1",
        "https://user@host",
        "https://user:pass@host",
        "https://host?a=b",
        "https://host?",
        "https://host#a",
        "https://host#",
        "https://ho st",
        "https://host\n",
        "https://ho\tst",
        " https://host",
    ],
)
@each_row("name", ["base_url", "call_base_url"])
def test_a_base_url_that_is_no_plain_address_is_refused_by_name(base_url, name):
    with pytest.raises(InvalidRequest, match=f"^{name}: an address such as https://host:8883") as caught:
        make(**{"base_url": "https://host", name: base_url})
    assert caught.value.field == name
    assert "pass" not in str(caught.value)


def test_an_empty_base_url_is_refused_and_an_empty_one_for_tasks_is_none():
    with pytest.raises(InvalidRequest, match=r"^base_url: "):
        make("")
    assert make("https://host", call_base_url="").origins["call_base_url"] == "https://host"


# ---------------------------------------------------------------------------- headers and bodies


def test_bodies_are_utf_8_and_compact():
    assert make().encode(DeleteGroup(group_id="群 1")).body == '{"groupId":"群 1"}'.encode()


@each_row(
    "op, name",
    [
        (CreateGroup(name="a\ud800", type=GroupType.VIP), "name"),
        (CreateGroup(name="a", type=GroupType.VIP, group_domain="\udfff"), "group_domain"),
        (DeleteGroup(group_id="\ud83c"), "group_id"),
        (InviteJoinGroup(group_id="g1", members=["1001", "\udf89"]), "members"),
        (DeleteGroup(group_id="g1", user_name="\udf89"), "user_name"),
    ],
)
@each_row("road", ["orjson", "standard library"])
@each_row("shape", MembersShape)
def test_half_a_character_in_a_request_is_refused_by_name(op, name, road, shape, monkeypatch):
    if road == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(rbim_json, "orjson", None)
    with pytest.raises(InvalidRequest, match=f"^{name}: .* lone surrogate") as caught:
        make(members_shape=shape).encode(op)
    assert caught.value.field == name


@operation("Odd")
@frozen(kw_only=True)
class Odd(GroupOperation[Success]):
    price: Decimal | None = None
    share: float | None = None
    notes: dict[str, str] | None = None
    trace: str | None = field(default=None, metadata=wire(header="X-Trace"))


@each_row("road", ["orjson", "standard library"])
@each_row(
    "name, value, why",
    [
        ("price", Decimal(1), "it cannot be written as JSON"),
        ("share", float("nan"), "it cannot be written as JSON"),
        ("notes", {"a": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_name(name, value, why, road, monkeypatch):
    if road == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(rbim_json, "orjson", None)
    with pytest.raises(InvalidRequest, match=f"^{name}: .*{why}") as caught:
        make().encode(Odd(**{name: value}))
    assert caught.value.field == name


def test_what_only_the_whole_keeps_from_being_written_names_no_field():
    assert _unwritable(Odd, {"price": 1}).message == "the request cannot be written as JSON"


def test_a_field_with_a_header_travels_in_it():
    request = make().encode(Odd(trace="t1"))
    assert (request.headers["X-Trace"], request.body) == ("t1", b"{}")
    assert "X-Trace" not in make().encode(Odd()).headers


# ------------------------------------------------------------------------- what an answer may be

SUCCESS = b'{"statusCode":"000000"}'
REFUSAL = b'{"statusCode":"112310","statusMsg":"no such thing"}'
PATH = "/2013-12-26/Application/app/IM/Group/DeleteGroup"
HTML = b"<html>\n<h1>Bad Gateway</h1></html>"
PAGES = [  # of proxies, gateways and firewalls
    HTML,
    b"",
    b"no healthy upstream",
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    b"{}",
    b"[1]",
    b'{"statusCode":404,"message":"no Route matched"}',
    b'{"statusCode":"404","message":"no Route matched"}',
    b'{"statusCode":"FORBIDDEN"}',
    b'{"statusCode":-100001}',
    b'{"statusCode":1234567}',
    b'{"statusCode":["000000"]}',
    b'{"statusCode":true}',
]
UNFOLLOWED, IF_THERE = "which is not followed:", "if the platform is there"
OURS = {
    b"",
    b"{}",
    b"[1]",
    b'{"statusCode":["000000"]}',
    b'{"statusCode":true}',
}  # with HTTP 200 the platform's, but damaged


def test_success_is_http_200_with_the_code_of_success():
    assert decode(body=SUCCESS) == Success()


def test_an_answer_with_colons_in_a_text_is_parsed_once(monkeypatch):
    monkeypatch.setattr(rbim_json, "keys_of", lambda _: pytest.fail("it was parsed again"))
    assert decode(body=b'{"statusCode":"000000","at":"12:30:00"}') == Success(extra={"at": "12:30:00"})
    assert decode(body=b'{"statusCode":"000000","at":"12:30\\u000a"}') == Success(extra={"at": "12:30\n"})
    assert decode(INVITE, body=b'{"statusCode":"000000","fails":[{"member":"1001","reason":"r"}]}').fails


@each_row(
    "status, body, kind, outcome",
    [
        # a readable code that is no success
        (200, REFUSAL, ApiError, Outcome.REFUSED),
        (201, REFUSAL, ApiError, Outcome.REFUSED),
        (400, REFUSAL, ApiError, Outcome.REFUSED),
        (401, REFUSAL, AuthenticationError, Outcome.REFUSED),
        (429, REFUSAL, Throttled, Outcome.REFUSED),
        (500, REFUSAL, ApiError, Outcome.UNKNOWN),
        (503, b'{"statusCode":"160001"}', Throttled, Outcome.UNKNOWN),
        (200, b'{"statusCode":"160001"}', Throttled, Outcome.REFUSED),
        (400, b'{"statusCode":"160001"}', Throttled, Outcome.REFUSED),
        (429, b'{"statusCode":"111109"}', Throttled, Outcome.REFUSED),
        (404, b'{"statusCode":"111109"}', AuthenticationError, Outcome.REFUSED),
        (200, b'{"statusCode":"529999"}', ServerTrouble, Outcome.UNKNOWN),
        # codes and statuses that disagree: the less certain holds
        (429, b'{"statusCode":"529999"}', Throttled, Outcome.UNKNOWN),
        (404, b'{"statusCode":"529999"}', ServerTrouble, Outcome.UNKNOWN),
        (401, b'{"statusCode":"529999"}', ServerTrouble, Outcome.UNKNOWN),
        (408, REFUSAL, ApiError, Outcome.UNKNOWN),
        (408, b'{"statusCode":"111109"}', AuthenticationError, Outcome.UNKNOWN),
        (408, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (429, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        # the other family's field, if its value is a code of the table
        (200, b'{"code":"111109"}', AuthenticationError, Outcome.REFUSED),
        (200, b'{"code":"529999"}', ServerTrouble, Outcome.UNKNOWN),
        (200, b'{"code":"112310"}', ProtocolError, Outcome.UNKNOWN),
        (200, b'{"code":200}', ProtocolError, Outcome.UNKNOWN),
        (200, b'{"statusCode":"112310","code":"111109"}', AuthenticationError, Outcome.REFUSED),
        (200, b'{"statusCode":"112310","code":"529999"}', ServerTrouble, Outcome.UNKNOWN),
        (200, b'{"statusCode":"111109","code":"000000"}', AuthenticationError, Outcome.UNKNOWN),
        (200, b'{"statusCode":"000000","code":"111109"}', ProtocolError, Outcome.UNKNOWN),
        (404, b'{"code":"000000"}', ProtocolError, Outcome.UNKNOWN),
        # something in between
        (429, b"", Throttled, Outcome.REFUSED),
        (429, HTML, Throttled, Outcome.REFUSED),
        *((status, HTML, IntermediaryError, Outcome.REFUSED) for status in (300, 302, 400, 401, 404, 407, 499)),
        *((status, HTML, IntermediaryError, Outcome.UNKNOWN) for status in (403, 408, 451, 500, 502, 503, 504, 600)),
        *((404, body, IntermediaryError, Outcome.REFUSED) for body in PAGES),
        *((502, body, IntermediaryError, Outcome.UNKNOWN) for body in PAGES),
        *((200, body, IntermediaryError, Outcome.UNKNOWN) for body in PAGES if body not in OURS),
        (201, HTML, IntermediaryError, Outcome.UNKNOWN),
        # anything else
        *((200, body, ProtocolError, Outcome.UNKNOWN) for body in OURS),
        (200, b'{"statusCode":"0000', ProtocolError, Outcome.UNKNOWN),
        (201, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (204, b"", ProtocolError, Outcome.UNKNOWN),
        (304, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (400, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (500, SUCCESS, ProtocolError, Outcome.UNKNOWN),
    ],
)
def test_what_a_status_and_a_body_become(status, body, kind, outcome):
    error = failure(status=status, body=body)
    assert type(error) is kind
    assert (error.status, error.body, error.outcome) == (status, body, outcome)


@each_row(
    "status, body, reason",
    [
        (201, SUCCESS, "the success code, but only HTTP 200 is a success"),
        (200, b'{"statusCode":"000000","code":"111109"}', "the success code, and the code 111109"),
    ],
)
def test_why_a_success_code_is_no_success(status, body, reason):
    assert failure(status=status, body=body).reason == reason


@each_row(
    "body, kind, code",
    [
        (b'{"statusCode":"111109"}', AuthenticationError, "111109"),
        (b'{"statusCode":111109,"statusMsg":"sig"}', AuthenticationError, "111109"),
        (b'{"statusCode":"000000"}', ProtocolError, None),
        (b'{"statusCode":"112310"}', ProtocolError, None),
        (b'{"code":"000000","data":{"taskId":"t"},"statusCode":"160016"}', ProtocolError, None),
    ],
)
def test_a_task_answer_with_the_code_of_group_operations_is_what_that_code_says(body, kind, code):
    error = failure(TASK, body=body)
    assert (type(error), getattr(error, "code", None)) == (kind, code)


@each_row("charset", ["gbk", "gb2312", "gb18030"])
@each_row("status", [200, 400, 500])
def test_an_error_in_a_chinese_charset_keeps_its_code_and_its_words(charset, status):
    error = failure(status=status, body='{"statusCode":"112310","statusMsg":"群组不存在"}'.encode(charset))
    assert (type(error), error.code, error.platform_message) == (ApiError, "112310", "群组不存在")


def test_a_success_in_a_chinese_charset_is_one():
    assert decode(QueryGroupDetail(group_id="g1"), body='{"statusCode":"000000","name":"研发"}'.encode("gbk")).name == "研发"


@each_row("entry", ["[]", "{}", "1", '""', '{"a":1}'])
def test_an_answer_of_too_many_values_is_not_read(entry, monkeypatch):
    def fails_of(count):
        return f'{{"statusCode":"000000","fails":[{",".join([entry] * count)}]}}'.encode()

    each = 1 + entry.count("[") + entry.count("{")
    decode(INVITE, body=fails_of(MAX_VALUES // each // 10))
    read = []
    monkeypatch.setattr(rbim_json, "loads", read.append)
    error = failure(INVITE, body=fails_of(MAX_VALUES // each))
    assert (type(error), error.outcome, read) == (ProtocolError, Outcome.UNKNOWN, [])
    assert error.reason == "more than 120,000 values"
    assert type(failure(INVITE, status=404, body=fails_of(MAX_VALUES))) is IntermediaryError


@each_row(
    "status, headers, body, message",
    [
        (
            403,
            {"server": "squid"},
            HTML,
            "HTTP 403 with HTML from host:8883 (Server: squid): BETWEEN: 'Bad Gateway'",
        ),
        (502, {}, b"", "HTTP 502 without a body from host:8883: BETWEEN"),
        (503, {}, b"no healthy upstream", "HTTP 503 with text from host:8883: BETWEEN: 'no healthy upstream'"),
        (403, {}, PAGES[3], "HTTP 403 with XML from host:8883: BETWEEN: 'AccessDenied'"),
        (404, {}, PAGES[6], f"HTTP 404 with JSON from host:8883: BETWEEN: '{PAGES[6].decode()}'"),
        (407, {}, b"", f"HTTP 407 without a body from host:8883: BETWEEN: {LOGIN}"),
        (400, {"content-type": "text/html"}, b"<p>bad</p>", "HTTP 400 with HTML from host:8883: BETWEEN: 'bad'"),
        (400, {}, b"<script>let a='<b>'</script>\n<p>bad", "HTTP 400 with HTML from host:8883: BETWEEN: 'bad'"),
        (301, {}, b"", "HTTP 301 without a body from host:8883: BETWEEN"),
        (301, {"location": "mailto:a@b"}, b"", "HTTP 301 without a body from host:8883: BETWEEN"),
        (301, {"location": "http://[x"}, b"", "HTTP 301 without a body from host:8883: BETWEEN"),
        (
            301,
            {"location": f"https://im.example/v{PATH}?sig=0123"},
            HTML,
            f"HTTP 301 redirects to https://im.example/v{PATH}, {UNFOLLOWED} set base_url to https://im.example/v",
        ),
        (
            302,
            {"location": "//user:secret@sso.example/login?to=sig#0123"},
            b"",
            f"HTTP 302 redirects to https://sso.example/login, {UNFOLLOWED} {IF_THERE}, set base_url to its address",
        ),
    ],
)
def test_a_page_of_something_in_between_is_described(status, headers, body, message):
    error = failure(status=status, body=body, **headers)
    assert str(error) == message.replace("BETWEEN", "something between you and the platform answered")
    assert (error.server, error.retry_after) == (headers.get("server", ""), None)


def test_a_page_is_described_on_one_short_line_and_keeps_its_retry_after():
    error = failure(status=503, body=b"\x00\n<" * 10_000, server="a\nb" * 100, **{"retry-after": "7"})
    assert (len(str(error)) < 400, str(error).isprintable(), error.retry_after) == (True, True, 7.0)


def test_a_redirect_of_call_tasks_names_their_address():
    error = failure(TASK, status=308, location="https://calls.example/")
    assert "if the platform is there, set call_base_url to its address" in str(error)


@each_row(
    "written, read",
    [
        ("研发\ud83d\ude00组".encode("utf-8", "surrogatepass"), "研发😀组"),  # CESU-8
        ("研发".encode() + b"\xe7\xbb" + "部".encode(), "研发\ufffd部"),
        ("研发\ud83d".encode("utf-8", "surrogatepass"), "研发\ufffd"),
        ("研发部".encode("gb18030"), "研发部"),
        (b"caf\xe9", "caf\ufffd"),
        ("研\n发\t".encode(), "研\n发\t"),  # not escaped
    ],
)
def test_damage_in_one_place_leaves_the_rest_of_an_answer_as_it_is(written, read):
    assert decode(QueryGroupDetail(group_id="g1"), body=b'{"statusCode":"000000","name":"' + written + b'"}').name == read
    error = failure(body=b'{"statusCode":"112310","statusMsg":"' + written + b'"}')
    assert (type(error), error.code, error.platform_message) == (ApiError, "112310", read)


def test_a_message_of_the_platforms_cannot_write_a_line_of_its_own_into_a_log():
    said = "no\n2026-01-02 ERROR all is lost\x1b[31m" + "!" * 10_000
    error = failure(body=json.dumps({"statusCode": "112310", "statusMsg": said}).encode())
    assert error.platform_message == said
    assert str(error).isprintable()
    assert len(str(error)) < 600


@each_row("code", CODES)
def test_every_code_of_the_table_becomes_its_class(code):
    error = failure(body=json.dumps({"statusCode": code, "statusMsg": "m"}).encode())
    assert type(error) is CODES[code].error
    assert error.code == code


def test_the_table_as_public_material_has_it():
    def become(kind):
        return {code for code, row in CODES.items() if row.error is kind and row.grade is not Grade.EMULATOR}

    assert become(AuthenticationError) == {
        *"111109 161100 161101 161102 161103 161104 161105 161107 161108".split(),  # noqa: SIM905  # reads as a table
    }
    assert become(TimestampExpired) == {"161106"}
    assert become(Throttled) == {f"{n}" for n in range(160001, 160011)} | {"160016", "161006", "112354"}
    assert become(ServerTrouble) == {"529999", "559999"}
    assert become(NotMember) == {"560072"}
    assert become(AlreadyMember) == {"590017"}
    assert become(NotFound) == set()
    assert not any(row.before_effect for row in CODES.values())  # of none it is known
    assert all(row.note for row in CODES.values())


def test_a_code_outside_the_table_is_a_plain_api_error():
    assert type(failure(body=b'{"statusCode":"999999"}')) is ApiError
    codec = make(codes={"whatever": Code(error=NotFound, grade=Grade.SINGLE, note="seen here")})
    assert type(failure(codec=codec, body=b'{"statusCode":"whatever"}')) is NotFound  # what the table has is one


def test_a_table_of_ones_own_is_honoured():
    class QuotaSpent(ApiError):
        pass

    mine = {"112310": Code(error=QuotaSpent, grade=Grade.SINGLE, note="seen here")}
    codec = make(codes=mine)
    assert type(failure(codec=codec, body=REFUSAL)) is QuotaSpent
    assert type(failure(codec=codec, body=b'{"statusCode":"111109"}')) is ApiError
    assert type(failure(codec=make(codes={**CODES, **mine}), body=b'{"statusCode":"111109"}')) is AuthenticationError


# ------------------------------------------------------------------------------------ Retry-After


@each_row(
    "text, seconds",
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Fri, 02 Jan 2026 03:05:05 GMT", 60.0),
        ("Fri, 02 Jan 2026 11:05:05 +0800", 60.0),
        ("Fri, 02 Jan 2026 03:04:05 GMT", 0.0),
        ("Fri, 02 Jan 2015 03:04:05 GMT", 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", 2.0),
        ("1.0", 1.0),
        ("0.000", 0.0),
        ("60;", 60.0),
        ("60, 60", 60.0),
        ("5,60,soon", 60.0),
        ("9999999999", 86_400.0),
        ("86400.5", 86_400.0),
        ("007", 7.0),
        ("1.", None),
        ("1e3", None),
        ("Friday, 02-Jan-26 03:05:05 GMT", 60.0),
        ("Fri Jan  2 03:05:05 2026", 60.0),
        ("Fri, 02 Jan 2026 03:05:05 GMT, Fri, 02 Jan 2026 03:06:05 GMT", 120.0),
        ("Friday, 02-Jan-26 03:05:05 GMT, 7", 60.0),
        ("Fri Jan  2 03:05:05 2026, Fri Jan  2 03:06:05 2026", 120.0),
        ("Fri, 02 Jan 2099 03:04:05 GMT", 86_400.0),
        ("\N{ARABIC-INDIC DIGIT FIVE}", None),
        ("9" * 400, 86_400.0),
        ("9" * 9000 + ".5", 86_400.0),
        ("Fri, 02 Jan 2026 03:05:05 -0000", 60.0),
        ("Fri, 02 Jan 99999999999999999999 03:05:05 GMT", None),
        ("Fri, 02 Jan 2026 03:05:05 +99999999999999", None),
    ],
)
def test_retry_after_in_seconds_as_a_date_or_as_neither(text, seconds):
    assert _retry_after(text, FixedClock()) == seconds


@settings(deadline=None)
@given(text=st.text() | st.from_regex(r"(\w{3}, )?\d+ Jan \d+ \d+:\d+(:\d+)? [-+]?\w+") | st.from_regex(r"[\d., ;]*"))
def test_no_retry_after_whatever_raises(text):
    seconds = _retry_after(text, FixedClock())
    assert seconds is None or 0 <= seconds < float("inf")


# -------------------------------------------------------------------------------------- confirmed

LEAVE = LogoutGroup(group_id="g1")


@each_row(
    "op, code, answer",
    [
        (INVITE, "590017", Invited(invited=("1001",))),
        (InviteJoinGroup(group_id="g1", members=["1", "2"]), "590017", Invited(unknown=("1", "2"))),
        (DeleteGroupMember(group_id="g1", members=["1"]), "560072", Success()),
        (LEAVE, "560072", Success()),
        (LEAVE, "590017", None),
        (INVITE, "560072", None),
        (DELETE, "560072", None),
        (INVITE, "112310", None),
    ],
)
def test_codes_that_say_it_is_so_already_stand_for_an_answer(op, code, answer):
    assert make().confirmed(op, ApiError("m", code=code)) == answer


def test_only_an_answer_of_the_platform_confirms_anything():
    codec = make()
    assert codec.confirmed(LEAVE, Unanswered("reset")) is None
    assert codec.confirmed(LEAVE, ProtocolError("junk")) is None


def test_what_counts_as_so_already_is_the_dialects_choice():
    codec = make(already_so={"DeleteGroup": frozenset({"900404"}), "CreateGroup": frozenset({"1"})})
    assert codec.confirmed(DELETE, NotFound("gone", code="900404")) == Success()
    assert codec.confirmed(LEAVE, NotMember("m", code="560072")) is None
    assert codec.confirmed(CREATE, ApiError("m", code="1")) is None  # nobody knows the group's id


# ----------------------------------------------------- errors name fields as the wire does, one's own too


class Point:
    def __init__(self, text):
        self.x, self.y = map(int, text.split(","))


@frozen(kw_only=True)
class Inner:
    deep_value: int


@frozen(kw_only=True)
class Row(Answer):
    row_id: int


@frozen(kw_only=True)
class Located(Answer):
    where_is: Point
    inner_one: Inner | None = None
    by_name: dict[str, int] = field(factory=dict)
    rows: tuple[Row, ...] = ()


@operation("Locate")
@frozen(kw_only=True)
class Locate(GroupOperation[Located]):
    group_id: str = field(metadata=wire("gid"))
    hint: str | None = "none"


def hooks(converter):
    converter.register_structure_hook(Point, lambda text, _: Point(text))


def locate(fields, **options):
    body = b'{"statusCode":"000000",%s}' % fields.encode()
    return decode(Locate(group_id="g1"), body=body, codec=make(hooks=hooks), **options)


@frozen(kw_only=True)
class Flags(Answer):
    muted: bool = False
    level: int = 3
    share: float = 0.5
    names: tuple[str, ...] = ()
    limits: dict[str, int] = field(factory=dict)
    place: Inner | None = None
    seen: datetime | None = None
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    on: bool = field(default=True, metadata=wire(values={True: "yes", False: "no"}))
    shout: str = field(default="", metadata=wire(write=str.lower, read=str.upper))


@operation("AskFlags")
@frozen(kw_only=True)
class AskFlags(GroupOperation[Flags]):
    pass


@each_row(
    "fields, expected",
    [
        ('"muted":"0"', Flags(muted=False)),
        ('"muted":"1"', Flags(muted=True)),
        ('"muted":true', Flags(muted=True)),
        ('"muted":"false"', Flags(muted=False)),
        ('"level":"7"', Flags(level=7)),
        ('"names":"1001"', Flags(names=("1001",))),
        ('"names":["1001",1002]', Flags(names=("1001", "1002"))),
        ('"on":"no"', Flags(on=False)),
        ('"shout":"ab"', Flags(shout="AB")),
        ('"at":"20260102155306"', Flags(at=datetime(2026, 1, 2, 15, 53, 6, tzinfo=CHINA))),
    ],
)
def test_fields_of_ones_own_answers_are_read_as_declared(fields, expected):
    assert decode(AskFlags(), body=f'{{"statusCode":"000000",{fields}}}'.encode()) == expected


@each_row("fields", ['"muted":"perhaps"', '"on":"perhaps"', '"at":"yesterday"'])
def test_what_is_none_of_the_declared_values_is_no_answer(fields):
    with pytest.raises(ProtocolError, match=r"@ \$\.(muted|on|at)"):
        decode(AskFlags(), body=f'{{"statusCode":"000000",{fields}}}'.encode())


def test_an_operation_of_ones_own_is_written_by_its_wire_names_and_without_none():
    def body(**fields):
        return json.loads(make(hooks=hooks).encode(Locate(group_id="g1", **fields), "me").body)

    assert body() == {"userName": "me", "gid": "g1", "hint": "none"}
    assert body(hint=None) == {"userName": "me", "gid": "g1"}


@each_row(
    "fields, reason",
    [
        ('"x":1', "required field missing @ $.whereIs"),
        ('"whereIs":"3"', "not enough values to unpack (expected 2, got 1) @ $.whereIs"),
        ('"whereIs":"a,b"', "invalid literal for int() with base 10: 'a' @ $.whereIs"),
        ('"whereIs":"3,4","innerOne":{}', "required field missing @ $.innerOne.deep_value"),
        ('"whereIs":"3,4","byName":{"some_key":"x"}', "invalid literal for int() with base 10: 'x' @ $.byName[some_key]"),
        ('"whereIs":"3,4","rows":[{"rowId":"x"}]', "invalid literal for int() with base 10: 'x' @ $.rows.rowId"),
    ],
)
def test_a_protocol_error_names_the_field_as_the_wire_does(fields, reason):
    with pytest.raises(ProtocolError) as caught:
        locate(fields)
    assert caught.value.reason == reason
    assert caught.value.__cause__ is not None


# ------------------------------------------------------------------- what crosses the transport's border


def test_a_requests_target_is_fit_for_a_request_line():
    request = Request(origin="https://host", path="/a", query={"sig": "AB12", "q": "a b&c=群\r\n"})
    assert request.target == "/a?sig=AB12&q=a%20b%26c%3D%E7%BE%A4%0D%0A"
    assert Request(origin="https://host", path="/a").target == "/a"


def test_the_repr_of_requests_and_responses_shows_no_value_that_could_be_a_secret():
    request = Request(origin="https://host", path="/a", query={"sig": "S1"}, headers={"Authorization": "S2"}, body=b"S3")
    assert request.secrets == ("S1", "S2")
    assert repr(request) == (
        "Request(method='POST', origin='https://host', path='/a', query=<sig>, headers=<Authorization>, body=<2 bytes>,"
        " repeatable=False)"
    )
    assert "S4" not in repr(Response(302, {"location": "https://host/a?sig=S4"}, b""))
