"""Operations to requests, responses to answers or errors: addresses, headers, statuses, codes."""

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal

import attrs
import pytest
from attrs import field, frozen
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from rbim import (
    CODES,
    AlreadyMember,
    ApiError,
    AuthenticationError,
    Code,
    Dialect,
    Grade,
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
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    QueryGroupDetail,
    Role,
    SearchPublicGroups,
    SetMemberRole,
    Success,
)
from rbim.wire.codec import MAX_VALUES, Codec, _retry_after
from rbim.wire.converter import Converters


def make(base_url="https://host:8883", *, app_id="app", call_base_url=None, hooks=None, **choices):
    dialect = Dialect(**choices)
    return Codec(
        app_id=app_id, base_url=base_url, call_base_url=call_base_url, dialect=dialect, clock=FixedClock(), hooks=hooks
    )


DELETE = DeleteGroup(group_id="g1")
INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
CREATE = CreateGroup(name="a", type=GroupType.VIP)
TASK = CreateCallTask(
    bot_id=1,
    task_name="a",
    start_date=date(2026, 1, 5),
    end_date=date(2026, 1, 9),
    max_concurrent=1,
    min_concurrent=1,
    caller="1",
)


def decode(op=DELETE, status=200, body=b"", codec=None, **headers):
    return (codec or make()).decode(op, Response(status, headers, body))


def failure(*args, **options):
    with pytest.raises((ApiError, ProtocolError)) as caught:
        decode(*args, **options)
    return caught.value


# ------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("op", "last"),
    [
        (CREATE, "CreateGroup"),
        (ModifyGroup(group_id="g1", name="a", permission=None), "ModifyGroup"),
        (DELETE, "DeleteGroup"),
        (SearchPublicGroups(), "SearchPublicGroups"),
        (QueryGroupDetail(group_id="g1"), "QueryGroupDetail"),
        (JoinGroup(group_id="g1"), "JoinGroup"),
        (INVITE, "InviteJoinGroup"),
        (DeleteGroupMember(group_id="g1", members=["1"]), "DeleteGroupMember"),
        (LogoutGroup(group_id="g1"), "LogoutGroup"),
        (SetMemberRole(group_id="g1", member="1", role=Role.MEMBER), "SetMemberRole"),
    ],
)
def test_group_operations_are_posted_to_version_application_and_name(op, last):
    request = make().encode(op)
    assert request.method == "POST"
    assert request.target == f"/2013-12-26/Application/app/IM/Group/{last}"


def test_the_dialect_chooses_version_and_spelling():
    assert make(api_version="2014-06-30").encode(DELETE).path == "/2014-06-30/Application/app/IM/Group/DeleteGroup"
    singular = make(singular_search=True).encode(SearchPublicGroups())
    assert singular.path == "/2013-12-26/Application/app/IM/Group/SearchPublicGroup"


@pytest.mark.parametrize("op", [DELETE, SearchPublicGroups()])
def test_an_application_id_stays_one_segment_of_the_path(op):
    path = make(app_id="a/../b?{api_version}").encode(op).path
    assert path.startswith("/2013-12-26/Application/a%2F..%2Fb%3F%7Bapi_version%7D/IM/Group/")


@pytest.mark.parametrize(
    ("base_url", "origin"),
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


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("name", ["base_url", "call_base_url"])
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


def test_the_headers_of_every_request():
    assert make().encode(DELETE).headers == {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json;charset=utf-8",
    }


def test_an_encoded_request_is_unsigned():
    request = make().encode(DELETE)
    assert request.query == {}
    assert request.secrets == ()


def test_a_request_says_whether_it_may_be_sent_twice():
    codec = make()
    asking = InviteJoinGroup(group_id="g1", members=["1"], needs_confirmation=True)
    assert [codec.encode(op).repeatable for op in (DELETE, CREATE, INVITE, asking)] == [True, False, True, False]


def test_bodies_are_utf_8_and_compact():
    assert make().encode(DeleteGroup(group_id="群 1")).body == '{"groupId":"群 1"}'.encode()


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (CreateGroup(name="a\ud800", type=GroupType.VIP), "name"),
        (CreateGroup(name="a", type=GroupType.VIP, group_domain="\udfff"), "group_domain"),
        (DeleteGroup(group_id="\ud83c"), "group_id"),
        (InviteJoinGroup(group_id="g1", members=["1001", "\udf89"]), "members"),
        (DeleteGroup(group_id="g1", user_name="\udf89"), "user_name"),
    ],
)
@pytest.mark.parametrize("road", ["orjson", "standard library"])
@pytest.mark.parametrize("shape", MembersShape)
def test_half_a_character_in_a_request_is_refused_by_name(op, name, road, shape, monkeypatch):
    if road == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(rbim_json, "orjson", None)
    with pytest.raises(InvalidRequest, match=f"^{name}: .* lone surrogate") as caught:
        make(members_shape=shape).encode(op)
    assert caught.value.field == name


def test_half_a_character_in_the_clients_own_account_is_refused_by_name():
    with pytest.raises(InvalidRequest, match=r"^user_name: .* lone surrogate"):
        make().encode(DELETE, "\ud800")


@operation("Odd")
@frozen(kw_only=True)
class Odd(GroupOperation[Success]):
    price: Decimal | None = None
    share: float | None = None
    notes: dict[str, str] | None = None
    at: datetime | None = None
    opens: time | None = None
    trace: str | None = field(default=None, metadata=wire(header="X-Trace"))


@pytest.mark.parametrize("road", ["orjson", "standard library"])
@pytest.mark.parametrize(
    ("name", "value", "why"),
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


def test_a_moment_is_written_whole_in_the_dialects_zone():
    assert json.loads(make().encode(Odd(at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))).body) == {"at": "2026-1-2 11:4:5"}


def test_a_time_of_day_is_written_with_any_json_library(monkeypatch):
    monkeypatch.setattr(rbim_json, "orjson", None)
    assert make().encode(Odd(opens=time(9))).body == b'{"opens":"09:00:00"}'


def test_a_field_with_a_header_travels_in_it():
    request = make().encode(Odd(trace="t1"))
    assert (request.headers["X-Trace"], request.body) == ("t1", b"{}")
    assert "X-Trace" not in make().encode(Odd()).headers


def test_an_answer_that_is_declared_wrong_shows_before_anything_is_sent():
    @frozen(kw_only=True)
    class Wrong(Answer):
        rows: "tuple[Nowhere, ...]" = ()  # noqa: F821

    @operation("AskWrong")
    @frozen(kw_only=True)
    class AskWrong(GroupOperation[Wrong]):
        pass

    with pytest.raises(NameError, match="Nowhere"):
        make().encode(AskWrong())


# ------------------------------------------------------------------------- what an answer may be

SUCCESS = b'{"statusCode":"000000"}'
REFUSAL = b'{"statusCode":"112310","statusMsg":"no such thing"}'
HTML = b"<html>\n<h1>Bad Gateway</h1></html>"


def test_success_is_http_200_with_the_code_of_success():
    assert decode(body=SUCCESS) == Success()


@pytest.mark.parametrize(
    ("status", "body", "kind", "outcome"),
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
        (408, b"", ProtocolError, Outcome.UNKNOWN),
        (408, HTML, ProtocolError, Outcome.UNKNOWN),
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
        # HTTP 4xx without one
        (400, HTML, ApiError, Outcome.REFUSED),
        (401, b"", AuthenticationError, Outcome.REFUSED),
        (403, HTML, AuthenticationError, Outcome.REFUSED),
        (404, HTML, NotFound, Outcome.REFUSED),
        (429, b"", Throttled, Outcome.REFUSED),
        (499, b"{}", ApiError, Outcome.REFUSED),
        # anything else
        (200, b"", ProtocolError, Outcome.UNKNOWN),
        (200, HTML, ProtocolError, Outcome.UNKNOWN),
        (200, b"{}", ProtocolError, Outcome.UNKNOWN),
        (201, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (204, b"", ProtocolError, Outcome.UNKNOWN),
        (302, HTML, ProtocolError, Outcome.UNKNOWN),
        (304, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (400, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (500, SUCCESS, ProtocolError, Outcome.UNKNOWN),
        (500, b"", ProtocolError, Outcome.UNKNOWN),
        (502, HTML, ProtocolError, Outcome.UNKNOWN),
        (600, HTML, ProtocolError, Outcome.UNKNOWN),
    ],
)
def test_what_a_status_and_a_body_become(status, body, kind, outcome):
    error = failure(status=status, body=body)
    assert type(error) is kind
    assert (error.status, error.body, error.outcome) == (status, body, outcome)


@pytest.mark.parametrize(
    ("body", "kind", "code"),
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


def test_a_field_that_an_answer_declares_is_no_second_code():
    @frozen(kw_only=True)
    class Drawn(Answer):
        code: str = ""

    @operation("Draw")
    @frozen(kw_only=True)
    class Draw(GroupOperation[Drawn]):
        pass

    assert decode(Draw(), body=b'{"statusCode":"000000","code":"111109"}').code == "111109"
    assert decode(body=b'{"statusCode":"000000","code":"4711"}').extra == {"code": "4711"}


@pytest.mark.parametrize("written", ["0", '"0"', '"00"', '"000000"'])
def test_a_code_of_zeros_is_success_as_a_number_and_as_text(written):
    body = f'{{"statusCode":{written},"groupId":"g1"}}'.encode()
    assert decode(CREATE, body=body).group_id == "g1"


@pytest.mark.parametrize("charset", ["gbk", "gb2312", "gb18030"])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_error_in_a_chinese_charset_keeps_its_code_and_its_words(charset, status):
    error = failure(status=status, body='{"statusCode":"112310","statusMsg":"群组不存在"}'.encode(charset))
    assert (type(error), error.code, error.platform_message) == (ApiError, "112310", "群组不存在")


def test_an_error_in_no_known_charset_keeps_its_code():
    error = failure(body=b'{"statusCode":"111109","statusMsg":"sig\xff\xfe"}')
    assert (type(error), error.code, error.platform_message) == (AuthenticationError, "111109", "sig\ufffd\ufffd")


def test_a_success_in_a_chinese_charset_is_one_and_in_no_known_charset_is_none():
    assert decode(QueryGroupDetail(group_id="g1"), body='{"statusCode":"000000","name":"研发"}'.encode("gbk")).name == "研发"
    error = failure(CREATE, body=b'{"statusCode":"000000","groupId":"g\xff"}')
    assert (type(error), error.outcome) == (ProtocolError, Outcome.UNKNOWN)
    assert "not UTF-8 at byte 35" in error.reason


@pytest.mark.parametrize("entry", ["[]", "{}", "1", '""', '{"a":1}'])
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
    assert type(failure(INVITE, status=404, body=fails_of(MAX_VALUES))) is NotFound


def test_a_long_text_is_not_many_values():
    assert len(decode(QueryGroupDetail(group_id="g1"), body=SUCCESS[:-1] + b',"name":"%s"}' % (b"a" * 10**6)).name) == 10**6


def test_an_api_error_carries_what_the_platform_said():
    error = failure(status=500, body=REFUSAL)
    assert (error.code, error.platform_message) == ("112310", "no such thing")
    assert str(error) == "HTTP 500, code 112310: no such thing"


def test_an_api_error_without_a_code_shows_the_beginning_of_the_answer_on_one_line():
    error = failure(status=404, body=HTML)
    assert error.code == ""
    assert str(error) == "HTTP 404, no code: '<html> <h1>Bad Gateway</h1></html>'"
    assert len(str(failure(status=404, body=b"\x00" * 10_000))) < 200


def test_a_message_of_the_platforms_cannot_write_a_line_of_its_own_into_a_log():
    said = "no\n2026-01-02 ERROR all is lost\x1b[31m" + "!" * 10_000
    error = failure(body=json.dumps({"statusCode": "112310", "statusMsg": said}).encode())
    assert error.platform_message == said
    assert str(error).isprintable()
    assert len(str(error)) < 600


@pytest.mark.parametrize("code", CODES)
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
    assert type(failure(body=b'{"statusCode":"whatever"}')) is ApiError


def test_a_table_of_ones_own_is_honoured():
    class QuotaSpent(ApiError):
        pass

    mine = {"112310": Code(error=QuotaSpent, grade=Grade.SINGLE, note="seen here")}
    codec = make(codes=mine)
    assert type(failure(codec=codec, body=REFUSAL)) is QuotaSpent
    assert type(failure(codec=codec, body=b'{"statusCode":"111109"}')) is ApiError
    assert type(failure(codec=make(codes={**CODES, **mine}), body=b'{"statusCode":"111109"}')) is AuthenticationError


# ------------------------------------------------------------------------------------ Retry-After


@pytest.mark.parametrize(
    ("text", "seconds"),
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


@pytest.mark.parametrize(("status", "body"), [(429, b""), (503, HTML), (503, REFUSAL), (200, REFUSAL)])
def test_errors_carry_the_seconds_they_are_told_to_wait(status, body):
    codec = make()
    with pytest.raises((ApiError, ProtocolError)) as caught:
        codec.decode(DELETE, Response(status, {"retry-after": "7"}, body))
    assert caught.value.retry_after == 7.0
    with pytest.raises((ApiError, ProtocolError)) as caught:
        codec.decode(DELETE, Response(status, {}, body))
    assert caught.value.retry_after is None


# -------------------------------------------------------------------------------------- confirmed

LEAVE = LogoutGroup(group_id="g1")


@pytest.mark.parametrize(
    ("op", "code", "answer"),
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


def test_an_operation_of_ones_own_reads_types_of_its_own():
    answer = locate('"whereIs":"3,4","innerOne":{"deep_value":5},"byName":{"a":1}')
    assert (answer.where_is.x, answer.inner_one.deep_value, answer.by_name) == (3, 5, {"a": 1})


@frozen(kw_only=True)
class Listed(Answer):
    member: str = ""
    role: str = ""


@frozen(kw_only=True)
class AllListed(Answer):
    members: tuple[Listed, ...] = ()


@operation("ListThem")
@frozen(kw_only=True)
class ListThem(GroupOperation[AllListed]):
    pass


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ('{"member":[{"member":"a","role":"0"},{"member":"b"}]}', (Listed(member="a", role="0"), Listed(member="b"))),
        ('{"member":{"member":"a","role":"0"}}', (Listed(member="a", role="0"),)),
        ('[{"member":"a","role":"0"}]', (Listed(member="a", role="0"),)),
        ('{"member":"a"}', (Listed(member="a"),)),
        ('{"member":["a","b"]}', (Listed(member="a"), Listed(member="b"))),
    ],
)
def test_a_row_may_have_a_field_of_the_name_that_stands_around_rows(written, rows):
    answer = decode(ListThem(), body=f'{{"statusCode":"000000","members":{written}}}'.encode())
    assert answer.members == rows


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


@pytest.mark.parametrize("nothing", ["null", '""'])
@pytest.mark.parametrize("name", [a.name for a in attrs.fields(Flags)])
def test_null_and_empty_text_are_the_default_of_a_field_of_any_type(name, nothing):
    answer = decode(AskFlags(), body=f'{{"statusCode":"000000","{name}":{nothing}}}'.encode())
    assert answer == Flags()


@pytest.mark.parametrize(
    ("fields", "expected"),
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


@pytest.mark.parametrize("fields", ['"muted":"perhaps"', '"on":"perhaps"', '"at":"yesterday"'])
def test_what_is_none_of_the_declared_values_is_no_answer(fields):
    with pytest.raises(ProtocolError, match=r"@ \$\.(muted|on|at)"):
        decode(AskFlags(), body=f'{{"statusCode":"000000",{fields}}}'.encode())


def test_an_answer_of_ones_own_is_written_as_declared():
    written = make().converters.fast.unstructure(Flags(on=False, shout="AB"))
    assert (written["on"], written["shout"]) == ("no", "ab")


def test_an_operation_of_ones_own_is_written_by_its_wire_names_and_without_none():
    def body(**fields):
        return json.loads(make(hooks=hooks).encode(Locate(group_id="g1", **fields), "me").body)

    assert body() == {"userName": "me", "gid": "g1", "hint": "none"}
    assert body(hint=None) == {"userName": "me", "gid": "g1"}


@pytest.mark.parametrize(
    ("fields", "reason"),
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


@pytest.mark.parametrize("what", ["QueryGroupDetail", QueryGroupDetail, None, {"group_id": "g1"}])
def test_what_is_no_operation_is_said_to_be_none(what):
    with pytest.raises(TypeError, match="an operation is needed"):
        make().encode(what)


def test_a_hook_may_raise_whatever_it_likes():
    class Odd(Exception):
        def __str__(self):
            return ""

    def raising(converter):
        def raise_odd(_, __):
            raise Odd

        converter.register_structure_hook(Point, raise_odd)

    with pytest.raises(ProtocolError, match=re.escape("Odd @ $.whereIs")):
        make(hooks=raising).decode(Locate(group_id="g1"), Response(200, {}, b'{"statusCode":"000000","whereIs":"1,2"}'))


def test_requests_that_cannot_be_read_are_explained_by_their_wire_names():
    explain = Converters(CHINA, MembersShape.PLAIN).explain
    assert (
        explain({"groupId": "g1", "members": ["1"], "confirm": "7"}, InviteJoinGroup) == "'7' is not one of 0, 1 @ $.confirm"
    )
    assert explain({"groupId": "g1"}, InviteJoinGroup) == "required field missing @ $.members"
    assert explain([], DeleteGroup) == "an object is needed, not list @ $"
    assert "at most 50 characters, not 51 @ $" in explain({"name": "x" * 51, "type": "1"}, CreateGroup)


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
